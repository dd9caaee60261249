"""Options that several commands of the kit have."""

import click

baud = click.option(
    "--baud",
    type=click.IntRange(9_600, 4_000_000),
    default=921_600,
    show_default=True,
    help="Speed of a real UART: that of the device's [link] baud.",
)
