"""The one way bad input is reported: a place, what is wrong there, and the remedy, on one line.

Raised only at the edges (files, scenarios, options). Inside, invariants are asserted instead.
"""


class InputError(Exception):
    """Input a user can mend: ``place`` names where it stands, ``problem`` its value and the remedy.

    The command line prints ``place: problem`` as a single line and exits with status 2.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)  # both, so that it survives pickling and SimPy's copies
        self.place = place
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"
