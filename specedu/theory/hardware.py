"""Peak rates of processors, as their makers state them: what a roofline is drawn from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """One processor's two peaks. Both are of data sheets; no kernel reaches either.

    Attributes:
        name: as its maker calls it.
        peak_flops: dense bf16 products with float32 sums, FLOP/s; sheets often print twice that,
            with sparsity.
        bandwidth: of its memory, B/s.
        source: where both were read.
        date: the sheet's year.

    Raises:
        ValueError: a peak is not above 0.

    Example:
        >>> Hardware("toy", 600.0, 3.0, "none", "2026").ridge
        200.0
    """

    name: str
    peak_flops: float
    bandwidth: float
    source: str
    date: str

    def __post_init__(self) -> None:
        """Refuse what is no peak."""
        for setting in ("peak_flops", "bandwidth"):
            if not getattr(self, setting) > 0:
                raise ValueError(f"{setting}: {getattr(self, setting)}, expected above 0")

    @property
    def ridge(self) -> float:
        """The intensity at which reading and computing take equally long, FLOP/byte.

        Below it a step is bound by memory. ``cost.T_star`` gives it in token positions.

        Book: eq-ridge.
        """
        return self.peak_flops / self.bandwidth


HARDWARE = {
    sheet.name: sheet
    for sheet in [
        Hardware(
            name="H100 SXM",
            peak_flops=989.4e12,  # 1978.9e12 with sparsity
            bandwidth=3.35e12,
            source="NVIDIA, H100 Tensor Core GPU architecture and data sheet",
            date="2023",
        ),
        Hardware(
            name="H200 SXM",
            peak_flops=989.4e12,  # the same chip as the H100's, on faster memory
            bandwidth=4.8e12,
            source="NVIDIA, H200 Tensor Core GPU data sheet",
            date="2023",
        ),
        Hardware(
            name="A100 80GB SXM",
            peak_flops=312e12,
            bandwidth=2.039e12,
            source="NVIDIA, A100 Tensor Core GPU data sheet",
            date="2021",
        ),
        Hardware(
            name="H100 PCIe",
            peak_flops=756.5e12,  # 1513e12 with sparsity
            bandwidth=2.0e12,
            source="NVIDIA, H100 Tensor Core GPU data sheet",
            date="2022",
        ),
        Hardware(
            name="B200",
            peak_flops=2250e12,  # 4500e12 with sparsity; one of the eight of an HGX board, at 1 kW
            bandwidth=8.0e12,
            source="NVIDIA, Blackwell architecture technical brief",
            date="2024",
        ),
        Hardware(
            name="MI300X",
            peak_flops=1307.4e12,  # 2614.9e12 with sparsity
            bandwidth=5.3e12,
            source="AMD, Instinct MI300X data sheet",
            date="2023",
        ),
        Hardware(
            name="L4",
            peak_flops=121e12,  # 242e12 with sparsity
            bandwidth=300e9,
            source="NVIDIA, L4 Tensor Core GPU data sheet",
            date="2023",
        ),
        Hardware(
            name="T4",
            peak_flops=65e12,  # float16: it has no bf16 products
            bandwidth=320e9,
            source="NVIDIA, T4 Tensor Core GPU data sheet",
            date="2019",
        ),
    ]
}


def hardware(name: str) -> Hardware:
    """Return a processor by its name.

    Raises:
        ValueError: there is no data for it; the message lists the names.

    Example:
        >>> round(hardware("H100 SXM").ridge, 1)
        295.3
    """
    if name not in HARDWARE:
        raise ValueError(f"hardware: {name!r}, expected one of {', '.join(HARDWARE)}")
    return HARDWARE[name]
