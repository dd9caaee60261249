"""The checks of `palmctl doctor`: functions from a `Case` to a `Finding`, in the module of their subject.

`device.doctor.examine.examine` runs them. No check changes anything on the device, and no finding holds a
secret or a personal value, because findings go into support bundles.
"""
