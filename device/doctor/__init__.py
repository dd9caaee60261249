"""The checks of `palmctl doctor`: one file for each, with a function from a `Case` to a `Finding`.

`device.doctor.examine.examine` runs them. No check changes anything on the device, and no finding holds a
secret or a personal value, because findings go into support bundles.
"""
