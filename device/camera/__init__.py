"""Where frames come from: a V4L2 camera, a video file or a folder of images, behind one interface.

`source.open_camera(source, fps, loop)` returns a `source.Camera`.
"""

import models as models  # limits what OpenCV decodes (`models.MOST_PIXELS`), before OpenCV is loaded
