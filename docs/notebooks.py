"""Write the tutorials as executed notebooks into examples/: `python docs/notebooks.py` (a few minutes).

A page is read as `console.py` reads it. A block of code with a caption becomes a cell that writes the file; where later commands only
run that file, the cell is the code itself. Commands become a cell of bash, without what they write to standard error: progress.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
TUTORIALS = ("hospital", "researcher", "own-method")
BLOCK = re.compile(
    r"^```(?:console\n(?P<session>.*?)|\{code-block\} python\n:caption: (?P<name>\S+)\n\n(?P<code>.*?))^```$",
    re.M | re.S,
)
ROLE = re.compile(r"\{term\}`([^`<]+?)(?: <[^`]*>)?`")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def cells(page: str) -> list[Any]:
    """Return the cells of a page of the documentation, none of them executed."""
    made: list[Any] = []
    end = 0
    for block in BLOCK.finditer(page):
        made += _text(page[end : block.start()])
        end = block.end()
        if block["name"]:
            made.append(
                new_code_cell(f"%%writefile {block['name']}\n{block['code'].rstrip()}")
            )
            continue
        commands = "\n".join(re.findall(r"^(?:\$|>) (.*)", block["session"], re.M))
        file = f"%%writefile {commands.removeprefix('python ')}\n"
        alone = next((cell for cell in made if cell.source.startswith(file)), None)
        if alone:
            alone.source = alone.source.removeprefix(file)
        else:
            made.append(new_code_cell(f"%%bash\n{commands}"))
    made += _text(page[end:])
    for number, cell in enumerate(made):
        cell["id"] = f"cell-{number}"
    return made


def _text(markdown: str) -> list[Any]:
    plain = LINK.sub(r"\1", ROLE.sub(r"\1", markdown)).strip()
    return [new_markdown_cell(plain)] if plain else []


def executed(page: str) -> Any:
    """Return the notebook of a page after all of its cells have run in an empty folder."""
    kernel = {
        "kernelspec": {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
    }
    notebook = new_notebook(cells=cells(page), metadata=kernel)
    settings = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "92",
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=1800, resources={"metadata": {"path": folder}}
        )
        client.execute(env={**os.environ, **settings})
    for cell in notebook.cells:
        cell.metadata.clear()  # when it ran
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """Return outputs without standard error, and standard output, which comes in pieces, as one."""
    printed = "".join(out.text for out in outputs if out.get("name") == "stdout")
    others = [
        out for out in outputs if out.output_type != "stream" and not _is_progress(out)
    ]
    return (
        [new_output("stream", name="stdout", text=printed), *others]
        if printed
        else others
    )


def _is_progress(output: Any) -> bool:
    return output.output_type == "display_data" and not output.data.get(
        "text/html", "-"
    )


if __name__ == "__main__":
    for tutorial in sys.argv[1:] or TUTORIALS:
        made = executed(
            (DOCS / "tutorials" / f"{tutorial}.md").read_text(encoding="utf-8")
        )
        nbformat.write(made, EXAMPLES / f"{tutorial}.ipynb")
