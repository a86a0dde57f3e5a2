"""The acceptance rules, each a Triton kernel beside its vectorised torch twin.

Imported as ``specedu.kernels``. Every public function takes the layout and obeys the rule that its
docstring states; ``backend=None`` runs Triton on CUDA tensors and the twin elsewhere,
``backend="triton"`` on CPU tensors runs Triton's interpreter.
"""

if __name__ == "kernels":
    # Python was started beside this folder and somebody asked for the package "kernels", which is
    # Hugging Face's and which transformers imports. Hand over that package, or say what to import.
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from pathlib import Path

    _here = Path(__file__).resolve().parent.parent
    _spec = PathFinder.find_spec(
        "kernels", [entry for entry in sys.path if Path(entry or ".").resolve() != _here]
    )
    if _spec is None or _spec.loader is None:
        _message = (
            "no package 'kernels' is installed; the acceptance rules in this folder are imported "
            "as 'specedu.kernels'"
        )
        if "transformers" not in sys.modules:
            raise ImportError(_message, name="kernels")
        # transformers looks for the package, finds this folder, and imports it unguarded to read a
        # version; raising here would take its Llama down. A module without version and file tells
        # it that nothing is installed. Whoever asks this module for more is told what to import.
        del __file__, __path__

        def __getattr__(name: str) -> object:
            if name.startswith("__") and name != "__path__":
                raise AttributeError(name)
            raise ImportError(_message, name="kernels")
    else:
        _installed = module_from_spec(_spec)
        sys.modules["kernels"] = _installed
        _spec.loader.exec_module(_installed)
else:
    from .block import verify_block
    from .chain import verify_chain
    from .coins import Purpose, exponential, one_uniform, uniform
    from .contract import Verified
    from .greedy import verify_greedy
    from .logspace import verify_logspace
    from .lossy import verify_synthetic, verify_threshold
    from .match import verify_match
    from .race import verify_race

    __all__ = [
        "Purpose",
        "Verified",
        "exponential",
        "one_uniform",
        "uniform",
        "verify_block",
        "verify_chain",
        "verify_greedy",
        "verify_logspace",
        "verify_match",
        "verify_race",
        "verify_synthetic",
        "verify_threshold",
    ]
