/* Preloaded into a program: any device that it asks V4L2's questions plays a camera with 640 x 480 MJPEG.
 *
 * PLAYED_JPEG names a file with one good picture. PLAYED_FRAMES says what comes, one letter a frame, the last
 * one for ever: g the picture, s its first third, x as many bytes of no JPEG, z a frame without a byte.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/videodev2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { BUFFERS = 4, SIZE = 640 * 480 * 2, FRAME_US = 10000 };

static int device = -1;
static char *buffers[BUFFERS], picture[SIZE];
static size_t picture_bytes;
static unsigned queue[BUFFERS], first, queued;

static void load(int fd)
{
    FILE *file;

    if (device >= 0)
        return;
    device = fd;
    for (int i = 0; i < BUFFERS; i++)
        buffers[i] = aligned_alloc(4096, SIZE);
    file = fopen(getenv("PLAYED_JPEG"), "rb");
    picture_bytes = fread(picture, 1, SIZE, file);
    fclose(file);
}

static void fill(struct v4l2_buffer *buffer)
{
    static const char *next;
    unsigned index = queue[first % BUFFERS];

    if (next == NULL)
        next = getenv("PLAYED_FRAMES");
    usleep(FRAME_US);
    first++, queued--;
    memcpy(buffers[index], picture, picture_bytes);
    if (*next == 'x')
        memset(buffers[index], 0x11, picture_bytes);
    *buffer = (struct v4l2_buffer){.type = buffer->type, .memory = buffer->memory, .index = index, .length = SIZE};
    buffer->bytesused = *next == 'z' ? 0 : *next == 's' ? picture_bytes / 3 : picture_bytes;
    gettimeofday(&buffer->timestamp, NULL);
    if (next[1] != '\0')
        next++;
}

static void describe(struct v4l2_format *format)
{
    *format = (struct v4l2_format){.type = V4L2_BUF_TYPE_VIDEO_CAPTURE};
    format->fmt.pix = (struct v4l2_pix_format){
        .width = 640, .height = 480, .pixelformat = V4L2_PIX_FMT_MJPEG, .field = V4L2_FIELD_NONE, .sizeimage = SIZE};
}

static int refuse(int error)
{
    errno = error;
    return -1;
}

static int answer(unsigned long request, void *argument)
{
    struct v4l2_buffer *buffer = argument;
    struct v4l2_capability *capability = argument;
    struct v4l2_streamparm *rate = argument;

    switch ((unsigned)request) {
    case (unsigned)VIDIOC_QUERYCAP:
        *capability = (struct v4l2_capability){.card = "Played"};
        capability->capabilities = V4L2_CAP_VIDEO_CAPTURE | V4L2_CAP_STREAMING;
        return 0;
    case (unsigned)VIDIOC_G_FMT:
    case (unsigned)VIDIOC_TRY_FMT:
    case (unsigned)VIDIOC_S_FMT:
        describe(argument);
        return 0;
    case (unsigned)VIDIOC_G_INPUT:
        *(int *)argument = 0;
        return 0;
    case (unsigned)VIDIOC_G_PARM:
    case (unsigned)VIDIOC_S_PARM:
        rate->parm.capture.capability = V4L2_CAP_TIMEPERFRAME;
        rate->parm.capture.timeperframe = (struct v4l2_fract){1, 30};
        return 0;
    case (unsigned)VIDIOC_REQBUFS:
        ((struct v4l2_requestbuffers *)argument)->count = BUFFERS;
        return 0;
    case (unsigned)VIDIOC_QUERYBUF:
        if (buffer->index >= BUFFERS)
            return refuse(EINVAL);
        buffer->length = SIZE;
        buffer->m.offset = buffer->index * SIZE;
        return 0;
    case (unsigned)VIDIOC_QBUF:
        queue[(first + queued++) % BUFFERS] = buffer->index;
        return 0;
    case (unsigned)VIDIOC_DQBUF:
        if (queued == 0)
            return refuse(EAGAIN);
        fill(buffer);
        return 0;
    case (unsigned)VIDIOC_STREAMOFF:
        first = queued = 0;
        return 0;
    case (unsigned)VIDIOC_ENUMINPUT:
    case (unsigned)VIDIOC_S_INPUT:
    case (unsigned)VIDIOC_STREAMON:
        return 0;
    default:
        return refuse(EINVAL);
    }
}

int ioctl(int fd, unsigned long request, ...)
{
    static int (*real)(int, unsigned long, ...);
    va_list arguments;
    void *argument;

    va_start(arguments, request);
    argument = va_arg(arguments, void *);
    va_end(arguments);
    if (real == NULL)
        real = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    if (_IOC_TYPE(request) != 'V')
        return real(fd, request, argument);
    load(fd);
    device = fd;
    return answer(request, argument);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    static void *(*real)(void *, size_t, int, int, int, off_t);

    if (real == NULL)
        real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    if (fd >= 0 && fd == device && size == SIZE)
        return buffers[offset / SIZE];
    return real(at, size, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    return mmap(at, size, protection, flags, fd, offset);
}

int munmap(void *at, size_t size)
{
    static int (*real)(void *, size_t);

    if (real == NULL)
        real = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
    for (int i = 0; i < BUFFERS; i++)
        if (at != NULL && at == buffers[i])
            return 0;
    return real(at, size);
}
