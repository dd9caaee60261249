"""What `palmctl doctor` looks at: one file a check, each a function from a `Case` to a `Finding`.

`device.doctor.examine.examine` runs them all. Nothing here changes anything on the device, and no finding
holds a secret or a personal value: findings go into support bundles.
"""
