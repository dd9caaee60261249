"""Everything that looks at pictures: hands, crops, quality, liveness, embeddings, codes."""

import os
from typing import Final

MOST_PIXELS: Final = 25_000_000
"""A picture of more is not decoded: a few kilobytes can say that they are gigabytes."""

# OpenCV reads this once, when it is loaded, and then refuses such a picture of any format by its header.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MOST_PIXELS))
