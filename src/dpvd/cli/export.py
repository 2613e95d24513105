"""``dpvd export``: the mean network of a finished run as a file for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from dpvd.cli.console import print_json, print_line
from dpvd.cli.options import AsJson
from dpvd.export import ExportFormat, export_model
from dpvd.runs import RunRecord, TrainedRun, TrainedTable
from dpvd.settings import Group

__all__ = ["EXAMPLES", "export"]

EXAMPLES = (
    "dpvd export runs/first --format onnx",
    "dpvd export runs/first --format torch --out model.pt2",
)


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    format: Annotated[
        ExportFormat,
        typer.Option(
            help="ONNX, a graph of torch.export, or the model's own tensors (safetensors).",
            rich_help_panel=Group.OUTPUT,
            show_default=False,
        ),
    ],
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File to write. Default: export.onnx, .pt2 or .safetensors in the run's folder.",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the mean network of a run as ONNX, torch.export or plain tensors; check it by use."""
    trained = TrainedTable(run) if RunRecord.read(run).table else TrainedRun(run)
    path = run / f"export{format.suffix}" if out_file is None else out_file
    done = export_model(trained, path, format=format)
    if as_json:
        print_json(
            {
                "file": str(done.path),
                "format": str(done.format),
                "input_shape": list(done.input_shape),
                "output": done.output,
                "largest_difference": done.largest_difference,
                "metadata": done.metadata,
            }
        )
        return
    print_line(f"Written: {done.path}")
    print_line(f"Takes: {done.metadata['inputs']}; gives: {done.output} at the mean weights")
    print_line(f"Checked: it was run, and differs from the model by {done.largest_difference:.1g}")
