"""A static int8 variant of a model, and whether it decides like the original.

``python -m models.training.quantise --model FOLDER --out FILE`` needs the ``train`` extra. Activations are
unsigned and weights signed bytes, calibrated on generated crops; contrast normalisation and the final length
stay in float.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from models.embedding import Embedder
from models.evaluation.generated_people import Scores, compare_all, embed_all
from models.manifest import load_manifest, open_embedder
from models.training.close_crops import Variation, sample_crop
from models.training.squares import draw_squares

FIRST_PALM: Final = 25_000_000
"""Neither trained on nor evaluated on."""
_CALIBRATION_PALMS: Final = 64
_COMPARED_PALMS: Final = 150
_OCCASIONS: Final = 4
_SEED: Final = 8


def quantise(model: Path, out: Path, crops: NDArray[np.uint8]) -> None:
    """Write the int8 variant of ``model``, calibrated on crops (n, 112, 112)."""
    from onnxruntime import quantization

    quantization.quantize_static(
        str(model),
        str(out),
        _reader(crops, quantization.CalibrationDataReader),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )


def _reader(crops: NDArray[np.uint8], base: Any) -> Any:
    batches: Iterator[dict[str, NDArray[np.uint8]]] = iter(
        [{"crops": crops[i : i + 16]} for i in range(0, len(crops), 16)]
    )

    class Reader(base):  # type: ignore[misc]  # onnxruntime's wheels have no types
        def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
            return next(batches, None)

    return Reader()


def agreement(one: Embedder, other: Embedder, palms: int, accept: float) -> dict[str, Any]:
    """How near the vectors of two models are, and how many decisions at ``accept`` differ."""
    crops, hands = _captures(palms, FIRST_PALM + _CALIBRATION_PALMS)
    first, second = embed_all(one, crops), embed_all(other, crops)
    cosines = (first * second).sum(axis=1)
    flips = [
        int(np.count_nonzero((a >= accept) != (b >= accept)))
        for a, b in zip(compare_all(first, hands), compare_all(second, hands), strict=True)
    ]
    mated, non_mated = compare_all(first, hands)
    return {
        "cosine_median": round(float(np.median(cosines)), 5),
        "cosine_lowest": round(float(cosines.min()), 5),
        "mated": len(mated),
        "mated_flips": flips[0],
        "non_mated": len(non_mated),
        "non_mated_flips": flips[1],
        "largest_score_change": round(_largest_change(first, second, hands), 4),
    }


def _largest_change(
    first: NDArray[np.float32], second: NDArray[np.float32], hands: NDArray[np.int64]
) -> float:
    pairs: list[tuple[Scores, Scores]] = list(
        zip(compare_all(first, hands), compare_all(second, hands), strict=True)
    )
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def _captures(palms: int, first: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    squares = draw_squares(0, palms, first)
    rng = np.random.default_rng(_SEED)
    # Two numbers apart for every palm, so that each counts as another person's.
    hands = np.repeat(np.arange(palms) * 2, _OCCASIONS)
    crops = [sample_crop(squares, int(hand) // 2, rng, False, Variation(wide=0.0)) for hand in hands]
    return np.stack(crops), hands


@click.command()
@click.option(
    "--model", "folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
def main(*, folder: Path, out: Path) -> None:
    """Write the int8 variant of a model folder's network and print how far the two agree, as JSON."""
    manifest = load_manifest(folder)
    quantise(manifest.embedding_path, out, _captures(_CALIBRATION_PALMS, FIRST_PALM)[0])
    agree = manifest.agree_q / 10_000
    found = agreement(open_embedder(manifest), Embedder(out), _COMPARED_PALMS, agree)
    click.echo(json.dumps({"bytes": out.stat().st_size, **found}))


if __name__ == "__main__":
    main()
