"""Prefix: what a full page holds, named by a chain of hashes.

The keys and values of a token depend on all tokens before it, so a page is named by its own
tokens and by the name of the page before it: equal names mean equal prefixes.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

# 128 bits of a cryptographic hash: two prefixes with one name are not met by chance, and nobody
# can make a prompt that is answered from another's pages.
_DIGEST_BYTES = 16


def root_key(salt: bytes) -> bytes:
    """Return the name that stands before the first page of a sequence.

    Args:
        salt: what else the keys and values depend on, such as an adapter or a tenant; sequences
            of different salts share nothing.
    """
    return blake2b(salt, digest_size=_DIGEST_BYTES, person=b"fmhagen root").digest()


def page_key(before: bytes, tokens: array[int]) -> bytes:
    """Return the name of a full page from the name before it and its token ids."""
    return blake2b(before + tokens.tobytes(), digest_size=_DIGEST_BYTES).digest()


class PrefixIndex:
    """Which page holds which prefix: a one-to-one map of names and pages."""

    __slots__ = ("_key_of_page", "_page_of_key")

    def __init__(self) -> None:
        """Start empty."""
        self._page_of_key: dict[bytes, int] = {}
        self._key_of_page: dict[int, bytes] = {}

    def __len__(self) -> int:
        """Return how many pages have a name."""
        return len(self._page_of_key)

    def __contains__(self, page: int) -> bool:
        """Return whether a page has a name."""
        return page in self._key_of_page

    def find(self, key: bytes) -> int | None:
        """Return the page of a name, or None."""
        return self._page_of_key.get(key)

    def publish(self, page: int, key: bytes) -> bool:
        """Name a page, which has no other name; return False if the name is taken."""
        if key in self._page_of_key:
            return False
        self._page_of_key[key] = page
        self._key_of_page[page] = key
        return True

    def forget(self, page: int) -> bool:
        """Take a page's name away; return whether it had one."""
        key = self._key_of_page.pop(page, None)
        if key is None:
            return False
        del self._page_of_key[key]
        return True
