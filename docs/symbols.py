"""Typeset the symbols that the headers of methods write as plain text: `delta_k = w^k_{t+1} - w_t` becomes a formula.

A name is a symbol if it is one letter, Greek, a known function, or has a subscript of one letter; `md_step` is code. Symbols that
operators join are one formula. What docutils cannot typeset stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml

GREEK = (
    *(
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "eta",
        "theta",
        "lambda",
        "mu",
        "nu",
        "xi",
        "pi",
        "rho",
        "sigma",
        "tau",
    ),
    *(
        "phi",
        "varpi",
        "omega",
        "psi",
        "Delta",
        "Gamma",
        "Theta",
        "Lambda",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
    ),
)
FUNCTIONS = {"argmin": r"\operatorname{argmin}", "grad": r"\nabla", "sum": r"\sum"}
FUNCTIONS |= {name: rf"\{name}" for name in ("log", "exp", "cos", "max", "min")}
ACCENTS = {"~": "tilde", "-tilde": "tilde", "-bar": "bar", "-hat": "hat"}

SCRIPT = r"[_^](?:\{[^}]*\}|\([^)]*\)|\w(?![A-Za-z])|[A-Za-z]{2,}(?!\w))"
NAMES = "|".join(sorted([*GREEK, *FUNCTIONS, "lr"], key=len, reverse=True))
ATOM = re.compile(
    rf"(?<![\w`.'])(?P<name>(?:{NAMES}|[A-Za-z])(?![A-Za-z])|[a-z]+(?=_[a-z](?!\w)))(?P<accent>~|-tilde|-bar|-hat)?"
    rf"(?P<primes>'*(?![a-z]))(?P<star>\*(?= [a-z]|$))?(?P<scripts>(?:{SCRIPT})*)(?!\w)"
)
SIGN = re.compile(
    rf"<-|(?:\|\||\))(?:{SCRIPT})?|<(?=[a-z])|(?<=\w)>|[=+\-*/(\[\]|,;]|\d+(?:\.\d+)?"
)
SIGNS = {"<-": r"\leftarrow ", "*": r"\cdot ", "<": r"\langle ", ">": r"\rangle "}
ARTICLES = ("a", "A", "I")
"""Letters that are words where nothing joins them to a formula."""
CODE = ("lr", "lam", "eps", "eps1", "eps2", "betas")
"""Names of fields that look like words."""


def typeset(text: str, prose: Callable[[str], str]) -> str:
    """Return the text as Markdown with its symbols as formulas; `prose` writes the rest."""
    written, at = [], 0
    while at < len(text):
        end, formula, atoms = _formula(text, at)
        if (
            formula
            and not (len(atoms) == 1 and text[at:end] in ARTICLES)
            and _can_be_set(formula)
        ):
            written.append(f"${formula}$")
            at = end
            continue
        word = re.match(r"`[^`]*`|\w[\w-]*|\s+|.", text[at:], re.S)
        assert word is not None
        is_code = word[0] in CODE or re.fullmatch(r"[a-z]+(_[a-z]+)+", word[0])
        written.append(f"`{word[0]}`" if is_code else prose(word[0]))
        at += word.end()
    return "".join(written)


def _formula(text: str, start: int) -> tuple[int, str, list[str]]:
    """Return where the formula that begins here ends, as LaTeX, and its symbols; no formula is an empty text."""
    at, latex, atoms = start, "", list[str]()
    best = (start, "", atoms)
    while at < len(text):
        if symbol := ATOM.match(text, at):
            latex += _latex(symbol) + " "
            atoms.append(symbol["name"])
            at = symbol.end()
        elif (sign := SIGN.match(text, at)) and (atoms or sign[0] in ("||", "-")):
            inside = _depth(text[start:at]) > 0
            if sign[0] in (",", ";") and not inside:
                break
            latex += SIGNS.get(sign[0]) or _scripts(sign[0].replace("||", r"\|"))
            at = sign.end()
        else:
            break
        ended = text[start:at]
        depth = _depth(ended)
        if depth < 0:
            break
        if atoms and depth == 0 and not re.search(r"[=+\-*/]$|<-$", ended):
            best = (at, latex.strip(), list(atoms))
        if text[at : at + 1] != " ":
            continue
        joined = SIGN.match(text, at + 1) or re.search(r"[=+\-*/,;]$|<-$", ended)
        product = ATOM.match(text, at + 1) and (
            len(atoms) > 1
            or depth
            or (atoms[-1:] and atoms[-1] in (*FUNCTIONS, "Delta"))
        )
        if not (joined or product):
            break
        at += 1
    return best


def _depth(text: str) -> int:
    """Return how many brackets are open at the end; negative: one was closed too early."""
    open_ones = 0
    for sign in re.findall(r"<-|[(<)>]|\|\|", text):
        open_ones += {"(": 1, "<": 1, ")": -1, ">": -1}.get(sign, 0)
        if open_ones < 0:
            return open_ones
    return open_ones + text.count("||") % 2


def _latex(symbol: re.Match[str]) -> str:
    name = symbol["name"]
    base = FUNCTIONS.get(name) or (
        rf"\{name}"
        if name in GREEK
        else name
        if len(name) == 1
        else rf"\mathrm{{{name}}}"
    )
    if symbol["accent"]:
        base = rf"\{ACCENTS[symbol['accent']]}{{{base}}}"
    return f"{base}{symbol['primes']}{'^*' if symbol['star'] else ''}{_scripts(symbol['scripts'])}"


def _scripts(text: str) -> str:
    """Return subscripts and superscripts with braces, Greek letters and words set upright."""
    braced = re.sub(r"([_^])(\([^)]*\)|[A-Za-z]{2,})", r"\1{\2}", text)
    return re.sub(
        r"(?<![\\\w])[A-Za-z]{3,}",
        lambda m: rf"\{m[0]}" if m[0] in GREEK else rf"\mathrm{{{m[0]}}}",
        braced,
    )


def _can_be_set(formula: str) -> bool:
    try:
        tex2mathml(formula)
    except MathError:
        return False
    return True
