"""The page of a what-if: one file with pictures, a timeline, curves and the numbers behind them.

    document = document_of(compare("two_racks", [Slow("tor0-tor1", 0.5)]))
    write_page("page.html", document)

All numbers that the page shows are in the document, which is embedded in the page as JSON.
"""

from pycoll.whatif.page.document import document_of
from pycoll.whatif.page.html import render, write_page

__all__ = ["document_of", "render", "write_page"]
