"""Training of the shipped models on generated palms; needs the ``train`` extra (torch, onnx)."""
