/* AdamW in C, held to test vectors: refopt vectors adamw --dtype fp64 --to adamw.json; a.out adamw.json
   A case is a line of the file; its numbers are text that strtod reads, such as "0x1.8p-4". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, LINE = 1 << 17 };

/* The numbers after a key that follows another: of ["inputs", "grads"], say. Returns how many. */
static int numbers(const char *line, const char *in, const char *key, double *to) {
    const char *at = strstr(strstr(line, in), key) + strlen(key);
    int n = 0;
    for (at += strspn(at, ": {\"value["); ; at++) {
        char *end;
        double x = strtod(at, &end);
        if (end == at) return n;
        if (n < MOST) to[n++] = x;
        at = end + 1;  /* past the quote */
        if (*at != ',') return n;
        at += 2;
    }
}

static double number(const char *line, const char *key) {
    double x[MOST] = {NAN};
    return numbers(line, "\"numbers\"", key, x) ? x[0] : NAN;
}

static int off(const char *line, const char *key, const double *got, int n) {
    double value[MOST], bound[MOST];
    const char *expected = strstr(strstr(line, "\"expected\""), key);
    int wrong = 0;
    numbers(expected, key, "\"value\"", value);
    numbers(expected, key, "\"bound\"", bound);
    for (int i = 0; i < n; i++) wrong += !(fabs(got[i] - value[i]) <= bound[i]);
    return wrong;
}

int main(int argc, char **argv) {
    static char line[LINE];
    double p[MOST], g[MOST], m[MOST], v[MOST];
    int cases = 0, wrong = 0;
    FILE *file = argc > 1 ? fopen(argv[1], "r") : NULL;
    while (file && fgets(line, LINE, file)) {
        if (!strstr(line, "\"inputs\"") || strstr(line, "moment2_max") || strstr(line, "\"maximize\": true")) continue;
        if (!strstr(line, "\"epsilon_at\": \"corrected\"")) continue;
        int n = numbers(line, "\"inputs\"", "\"params\"", p), step = atoi(strstr(line, "\"step\": ") + 8);
        numbers(line, "\"inputs\"", "\"grads\"", g);
        numbers(line, "\"inputs\"", "\"moment1\"", m);
        numbers(line, "\"inputs\"", "\"moment2\"", v);
        double lr = number(line, "\"lr\""), b1 = number(line, "\"beta1\""), b2 = number(line, "\"beta2\"");
        double eps = number(line, "\"epsilon\""), decay = number(line, "\"coeff\"") * number(line, "\"lr_ratio\"");
        for (int i = 0; i < n; i++) {
            m[i] = b1 * m[i] + (1 - b1) * g[i];
            v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
            double root = sqrt(v[i] / (1 - pow(b2, step))) + eps;
            p[i] -= lr * decay * p[i] + lr * (m[i] / (1 - pow(b1, step))) / root;
        }
        int bad = off(line, "\"params\"", p, n) + off(line, "\"moment1\"", m, n) + off(line, "\"moment2\"", v, n);
        if (bad) printf("%.60s: %d elements are off\n", line, bad);
        cases++, wrong += bad > 0;
    }
    printf("%d cases, %d wrong\n", cases, wrong);
    return cases == 0 || wrong > 0;
}
