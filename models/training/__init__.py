"""Training of the shipped models on generated palms; needs the dependency group ``train`` (torch, onnx)."""
