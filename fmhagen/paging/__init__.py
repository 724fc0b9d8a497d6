"""Paging: the pages of a key/value cache, who holds them, and where they lie.

    pool      reference counts, free pages, unreferenced prefixes in the order of their use
    prefix    what a full page holds, as a chain of hashes
    ledger    the pages of sequences: what is taken, copied, known
    manager   PagedKVCache: the operations that callers have
    readers   the part of it that changes nothing
    tables    block tables and lengths as the kernels read them
    csr       the same as FlashInfer takes them
    storage   PageStorage: the tensors
    usage     where the slots went

Everything but `storage` is integers alone and knows no tensor framework but NumPy.
"""

from fmhagen.paging.csr import CsrTables, csr_of, tables_of_csr
from fmhagen.paging.manager import PagedKVCache
from fmhagen.paging.places import Allocation, Appended, CopiesPages
from fmhagen.paging.storage import PageLayout, PageStorage, Places
from fmhagen.paging.tables import CascadeTables, PageTables
from fmhagen.paging.usage import Usage

__all__ = [
    "Allocation",
    "Appended",
    "CascadeTables",
    "CopiesPages",
    "CsrTables",
    "PageLayout",
    "PageStorage",
    "PageTables",
    "PagedKVCache",
    "Places",
    "Usage",
    "csr_of",
    "tables_of_csr",
]
