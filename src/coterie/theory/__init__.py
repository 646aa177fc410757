"""What the papers let one compute: rates, bounds and sizes of their lemmas and theorems, from constants that a user knows or estimates.

Each function names its equation, gives units, and says where the derivation in the paper's appendix leads to another constant than
the text prints. None of them looks at data: they answer "how large may a rate be" or "what does the bound say", not "what will happen".
"""

from coterie.theory import isfl, maxfl, meritfed, varsel
from coterie.theory.bounds import Bound

__all__ = ["Bound", "isfl", "maxfl", "meritfed", "varsel"]
