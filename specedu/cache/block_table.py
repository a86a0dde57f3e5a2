"""The block table of one request: from a position in its text to a slot of the cache.

Rolling back is forgetting: the table keeps its blocks, the request's computed length goes back, and
the next tokens overwrite the slots. Nothing ever reads behind the computed length.
"""

from __future__ import annotations

from .block_pool import BlockPool


class BlockTable:
    """The blocks of one request, in the order of its text.

    Example:
        >>> table = BlockTable(BlockPool(4), block_size=2)
        >>> table.reserve(3)
        >>> table.blocks, table.slots(0, 3)
        ([0, 1], [0, 1, 2])
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.blocks: list[int] = []

    def blocks_needed(self, num_tokens: int) -> int:
        """Return how many more blocks ``num_tokens`` tokens in all want; 0 if they fit.

        Example:
            >>> table = BlockTable(BlockPool(8), block_size=4)
            >>> table.reserve(7)
            >>> table.blocks_needed(7 + 6), table.blocks_needed(8)
            (2, 0)
        """
        return max(0, -(-num_tokens // self.block_size) - len(self.blocks))

    def reserve(self, num_tokens: int) -> None:
        """Own enough blocks for ``num_tokens`` tokens in all; blocks that it has stay.

        Raises:
            ValueError: the pool has too few; the table is as it was.
        """
        self.blocks += self.pool.allocate(self.blocks_needed(num_tokens))

    def slots(self, start: int, end: int) -> list[int]:
        """Return the slots of the positions ``start .. end - 1``.

        Raises:
            IndexError: a position lies behind the last block.
        """
        size = self.block_size
        return [self.blocks[i // size] * size + i % size for i in range(start, end)]

    def release(self) -> None:
        """Give every block back; the table is empty then, and may be released again."""
        blocks, self.blocks = self.blocks, []
        self.pool.free(blocks)
