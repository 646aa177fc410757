"""The papers' claims at laptop scale: experiments as TOML files, their results, and the page docs/results.md."""
