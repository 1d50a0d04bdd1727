"""Kernels of object detection that Numba's users write: overlaps of rotated boxes, and non-maximum suppression.

Each thread intersects pairs of boxes in device functions with signatures, local arrays, slices, loops that end early
and branches. All constants are float32, so that every simulator computes the same bits.
"""

import math

import numpy as np
from numba import cuda, float32

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
SIDE = 64  # boxes of a tile, and bits of a word


@cuda.jit("float32(float32[:], float32[:], float32[:])", device=True, inline=True)
def triangle(a, b, c):
    """Twice the area of a triangle, with its sign."""
    return (a[0] - c[0]) * (b[1] - c[1]) - (a[1] - c[1]) * (b[0] - c[0])


@cuda.jit("float32(float32[:], int32)", device=True, inline=True)
def polygon(points, count):
    """The area of a convex polygon, by triangles."""
    total = ZERO
    for i in range(count - 2):
        total += abs(triangle(points[:2], points[2 * i + 2 : 2 * i + 4], points[2 * i + 4 : 2 * i + 6]) / TWO)
    return total


@cuda.jit("(float32[:], int32)", device=True, inline=True)
def sort_around_center(points, count):
    """Order the corners of a convex polygon around its center, by insertion."""
    if count > 0:
        center = cuda.local.array(2, float32)
        center[0] = ZERO
        center[1] = ZERO
        for i in range(count):
            center[0] += points[2 * i]
            center[1] += points[2 * i + 1]
        center[0] /= float32(count)
        center[1] /= float32(count)
        key = cuda.local.array(16, float32)
        for i in range(count):
            x = points[2 * i] - center[0]
            y = points[2 * i + 1] - center[1]
            x = float32(x / float32(math.sqrt(x * x + y * y)))
            if y < ZERO:
                x = -TWO - x
            key[i] = x
        for i in range(1, count):
            if key[i - 1] > key[i]:
                own = key[i]
                x = points[2 * i]
                y = points[2 * i + 1]
                j = i
                while j > 0 and key[j - 1] > own:
                    key[j] = key[j - 1]
                    points[2 * j] = points[2 * j - 2]
                    points[2 * j + 1] = points[2 * j - 1]
                    j -= 1
                key[j] = own
                points[2 * j] = x
                points[2 * j + 1] = y


@cuda.jit("boolean(float32[:], int32, float32[:], int32, float32[:])", device=True, inline=True)
def cross(one, i, other, j, found):
    """Whether an edge of each of two quadrilaterals cross, and where."""
    a, b = one[2 * i : 2 * i + 2], one[2 * ((i + 1) % 4) : 2 * ((i + 1) % 4) + 2]
    c, d = other[2 * j : 2 * j + 2], other[2 * ((j + 1) % 4) : 2 * ((j + 1) % 4) + 2]
    if (triangle(a, d, c) > ZERO) == (triangle(b, d, c) > ZERO):
        return False
    if (triangle(a, b, c) > ZERO) == (triangle(a, b, d) > ZERO):
        return False
    abx, aby = b[0] - a[0], b[1] - a[1]
    cdx, cdy = d[0] - c[0], d[1] - c[1]
    along = a[0] * b[1] - b[0] * a[1]
    across = c[0] * d[1] - d[0] * c[1]
    size = abx * cdy - aby * cdx
    found[0] = (along * -cdx + abx * across) / size
    found[1] = (along * -cdy + aby * across) / size
    return True


@cuda.jit("boolean(float32, float32, float32[:])", device=True, inline=True)
def inside(x, y, corners):
    """Whether a point is in a rectangle."""
    abx, aby = corners[2] - corners[0], corners[3] - corners[1]
    adx, ady = corners[6] - corners[0], corners[7] - corners[1]
    apx, apy = x - corners[0], y - corners[1]
    ab, ad = abx * apx + aby * apy, adx * apx + ady * apy
    return ab >= ZERO and abx * abx + aby * aby >= ab and ad >= ZERO and adx * adx + ady * ady >= ad


@cuda.jit("int32(float32[:], float32[:], float32[:])", device=True, inline=True)
def intersect(one, other, points):
    """The corners of the intersection of two rectangles, and how many there are."""
    count = 0
    for i in range(4):
        if inside(one[2 * i], one[2 * i + 1], other):
            points[2 * count] = one[2 * i]
            points[2 * count + 1] = one[2 * i + 1]
            count += 1
        if inside(other[2 * i], other[2 * i + 1], one):
            points[2 * count] = other[2 * i]
            points[2 * count + 1] = other[2 * i + 1]
            count += 1
    found = cuda.local.array(2, float32)
    for i in range(4):
        for j in range(4):
            if count < 8 and cross(one, i, other, j, found):
                points[2 * count] = found[0]
                points[2 * count + 1] = found[1]
                count += 1
    return count


@cuda.jit("(float32[:], float32[:])", device=True, inline=True)
def to_corners(corners, box):
    """The corners of a box: center, sizes and angle."""
    cosine, sine = float32(math.cos(box[4])), float32(math.sin(box[4]))
    for i in range(4):
        x = (box[2] if i == 2 or i == 3 else -box[2]) / TWO
        y = (box[3] if i == 1 or i == 2 else -box[3]) / TWO
        corners[2 * i] = cosine * x + sine * y + box[0]
        corners[2 * i + 1] = -sine * x + cosine * y + box[1]


@cuda.jit("float32(float32[:], float32[:])", device=True, inline=True)
def rotated_overlap(one, other):
    """The area of the intersection of two rotated boxes, divided by that of their union."""
    one_corners = cuda.local.array(8, float32)
    other_corners = cuda.local.array(8, float32)
    points = cuda.local.array(16, float32)
    to_corners(one_corners, one)
    to_corners(other_corners, other)
    count = intersect(one_corners, other_corners, points)
    sort_around_center(points, count)
    area = polygon(points, count)
    return area / (one[2] * one[3] + other[2] * other[3] - area)


@cuda.jit(device=True)
def overlap(one, other):
    """The same of two boxes along the axes: left, top, right and bottom."""
    left, right = max(one[0], other[0]), min(one[2], other[2])
    top, bottom = max(one[1], other[1]), min(one[3], other[3])
    if right <= left or bottom <= top:
        return ZERO
    both = (right - left) * (bottom - top)
    areas = (one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1])
    return both / (areas - both)


@cuda.jit("(int64, int64, float32[:], float32[:], float32[:])")
def rotated_overlaps(n, k, boxes, queries, out):
    """The overlap of each of ``n`` boxes with each of ``k`` queries, by tiles of 64 x 64."""
    tile = cuda.shared.array(320, float32)
    query_tile = cuda.shared.array(320, float32)
    row, column, t = cuda.blockIdx.x * SIDE, cuda.blockIdx.y * SIDE, cuda.threadIdx.x
    rows, columns = min(n - row, SIDE), min(k - column, SIDE)
    if t < columns:
        for i in range(5):
            query_tile[t * 5 + i] = queries[(column + t) * 5 + i]
    if t < rows:
        for i in range(5):
            tile[t * 5 + i] = boxes[(row + t) * 5 + i]
    cuda.syncthreads()
    if t < rows:
        for i in range(columns):
            found = rotated_overlap(query_tile[i * 5 : i * 5 + 5], tile[t * 5 : t * 5 + 5])
            out[(row + t) * k + column + i] = found


@cuda.jit("(int64, float32, float32[:], uint64[:])")
def rotated_suppression(n, most, boxes, mask):
    """A word for each box and tile of 64 boxes: bit i is set if they overlap too much, for later boxes only."""
    tile = cuda.shared.array(320, float32)
    row, column, t = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    rows, columns = min(n - row * SIDE, SIDE), min(n - column * SIDE, SIDE)
    if t < columns:
        for i in range(5):
            tile[t * 5 + i] = boxes[(column * SIDE + t) * 5 + i]
    cuda.syncthreads()
    if t < rows:
        own = row * SIDE + t
        word = 0
        for i in range(t + 1 if row == column else 0, columns):
            if rotated_overlap(boxes[own * 5 : own * 5 + 5], tile[i * 5 : i * 5 + 5]) > most:
                word |= 1 << i
        mask[own * cuda.gridDim.x + column] = word


@cuda.jit
def suppression(n, most, boxes, mask):
    """The same for boxes along the axes, as rows of an array."""
    tile = cuda.shared.array((SIDE, 4), float32)
    row, column, t = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    rows, columns = min(n - row * SIDE, SIDE), min(n - column * SIDE, SIDE)
    if t < columns:
        for i in range(4):
            tile[t, i] = boxes[column * SIDE + t, i]
    cuda.syncthreads()
    if t < rows:
        own = row * SIDE + t
        word = 0
        for i in range(t + 1 if row == column else 0, columns):
            if overlap(boxes[own], tile[i]) > most:
                word |= 1 << i
        mask[own * cuda.gridDim.x + column] = word


def rotated(count, seed):
    """Boxes of an image: center, sizes, angle."""
    random = np.random.default_rng(seed)
    parts = random.uniform(0, 20, (count, 2)), random.uniform(2, 8, (count, 2)), random.uniform(-3, 3, (count, 1))
    return np.concatenate(parts, 1).astype(np.float32).reshape(-1)


def along_axes(count):
    """Boxes of an image: left, top, right, bottom."""
    random = np.random.default_rng(3)
    corner = random.uniform(0, 40, (count, 2))
    return np.concatenate((corner, corner + random.uniform(2, 10, (count, 2))), 1).astype(np.float32)
