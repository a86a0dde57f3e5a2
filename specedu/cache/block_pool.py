"""The block pool: every block is free or has a count of owners, and the two add up to all."""

from __future__ import annotations

from collections.abc import Iterable

from specedu.config import check_int


class BlockPool:
    """Hands out block ids and takes them back.

    A block that is freed is handed out again as late as possible, so that a stale read finds old
    contents and is noticed, rather than fresh ones that happen to fit.

    Example:
        >>> pool = BlockPool(4)
        >>> pool.allocate(3)
        [0, 1, 2]
        >>> pool.free([1])
        >>> pool.num_free, pool.num_used
        (2, 2)
        >>> pool.allocate(2)
        [3, 1]
    """

    def __init__(self, num_blocks: int) -> None:
        check_int("num_blocks", num_blocks, 1)
        self.num_blocks = num_blocks
        self._free = dict.fromkeys(range(num_blocks))  # an ordered set: oldest first
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that somebody owns."""
        return sum(count > 0 for count in self.ref_counts)

    def allocate(self, count: int) -> list[int]:
        """Return ``count`` free blocks, each now owned once.

        Raises:
            ValueError: fewer are free; nothing is handed out then.
        """
        if count > self.num_free:
            raise ValueError(f"count: {count} blocks, expected at most the {self.num_free} free")
        blocks = [block for block, _ in zip(self._free, range(count), strict=False)]
        for block in blocks:
            del self._free[block]
            self.ref_counts[block] = 1
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Take one owner off each block; a block without owners is free again.

        Raises:
            ValueError: a block has no owner; the blocks before it are freed.
        """
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.ref_counts[block] < 1:
                raise ValueError(f"blocks: {block} has no owner, expected an allocated block")
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self._free[block] = None

    def check(self) -> None:
        """Assert that the pool balances.

        Raises:
            AssertionError: a count is negative, or free and used blocks do not add up.
        """
        assert min(self.ref_counts) >= 0, self.ref_counts
        assert all(self.ref_counts[block] == 0 for block in self._free), "a free block has an owner"
        assert self.num_free + self.num_used == self.num_blocks, (self.num_free, self.num_used)
