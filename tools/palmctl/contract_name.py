"""An option's id in the form that LINK/1 and the cloud contract give ids."""

import click


class ContractName(click.ParamType[str]):
    """A device_id, gate_id, dbd_id or model_id; another text would look like a fault of the other end."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """`value` as it is. Raises click.BadParameter."""
        from link1.members import NAME

        if NAME.fullmatch(value) is None:
            self.fail("an id has 1 to 64 of the characters A-Z a-z 0-9 . _ : -", param, ctx)
        return value
