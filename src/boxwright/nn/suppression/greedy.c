// Greedy suppression within classes. Called from greedy.py, which says what the arguments are.

typedef struct {
    long count;
    double iou_threshold;
} Shape;

typedef struct {
    double left, top, right, bottom, area;
    long long label;
} Box;

static int overlaps(const Box *a, const Box *b, double threshold) {
    double left = a->left > b->left ? a->left : b->left, right = a->right < b->right ? a->right : b->right;
    double top = a->top > b->top ? a->top : b->top, bottom = a->bottom < b->bottom ? a->bottom : b->bottom;
    double width = right > left ? right - left : 0.0, height = bottom > top ? bottom - top : 0.0;
    double both = width * height;
    return both / (a->area + b->area - both) > threshold; // not where all is 0
}

// kept: first how many, then their numbers, best first. room: for as many boxes as there are.
void suppress_greedily(const Shape *shape, const double *boxes, const long long *labels, const long long *order,
                       Box *room, long long *kept) {
    long count = 0;
    for (long place = 0; place < shape->count; ++place) {
        const double *corners = boxes + 4 * order[place];
        Box box = {corners[0], corners[1], corners[2], corners[3],
                   (corners[2] - corners[0]) * (corners[3] - corners[1]), labels[order[place]]};
        long better = 0;
        while (better < count &&
               (room[better].label != box.label || !overlaps(&room[better], &box, shape->iou_threshold))) {
            ++better;
        }
        if (better == count) {
            room[count++] = box;
            kept[count] = order[place];
        }
    }
    kept[0] = count;
}
