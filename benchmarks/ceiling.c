/* PPO on CartPole-v1 in plain C on one core: a bound for the speed of other programs.

    cc -O3 -march=native -ffast-math -o ceiling benchmarks/ceiling.c -lm
    ./ceiling ENVS STEPS EPOCHS MINIBATCHES SECONDS UPDATES SEED

It ends after these seconds and updates, the later of both, and prints the steps per second after
the first update. The mean length of the last 100 or more episodes shows that it learns. Like the
program in JAX (same_work_jax.py), it acts with a policy and a value network of two tanh layers of
64 units, computes GAE, shuffles the samples in each epoch, and takes a clipped step of Adam per
minibatch. It shares no code with headrace.

Samples are the lanes of vectors: an array x[u][s] holds unit u of BLOCK samples s. All loops
over samples therefore vectorise without intrinsics. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INPUTS 4
#define UNITS 64
#define BLOCK 256 /* samples that pass through a network at a time */
#define TILE 8    /* units that are computed together, so that their sums stay in registers */
#define ROWS 4    /* the same for gradients: units of a layer, and of its input */
#if defined(__AVX512F__)
#define LANES 16
#define COLUMNS 4
#elif defined(__AVX__)
#define LANES 8
#define COLUMNS 2
#else
#define LANES 4
#define COLUMNS 2
#endif

static const float LEARNING_RATE = 2.5e-4f, GAMMA = 0.99f, LAMBDA = 0.95f, CLIP = 0.2f;
static const float ENTROPY_COEF = 0.01f, VALUE_COEF = 0.5f, MAX_NORM = 0.5f, EPS = 1e-5f;

typedef float Lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* Weights of a network with one or two outputs, by unit of the layer that they lead to. */
typedef struct {
    float w1[UNITS][INPUTS], b1[UNITS], w2[UNITS][UNITS], b2[UNITS], w3[2][UNITS], b3[2];
} Network;

typedef struct {
    Network policy, value;
} Weights;

#define NUM_WEIGHTS ((int)(sizeof(Weights) / sizeof(float)))

/* Activations of a block. */
typedef struct {
    float x[INPUTS][BLOCK], h1[UNITS][BLOCK], h2[UNITS][BLOCK], out[2][BLOCK];
} Block;

/* Samples of an update, [steps * envs] of each field. A reward is 1. */
typedef struct {
    float *obs[INPUTS], *action, *log_prob, *value, *ended, *advantage, *target;
} Samples;

#define FIELDS (INPUTS + 6)

typedef struct {
    float *state[INPUTS], *length; /* position and angle with their speeds; steps of the episode */
    uint32_t *random;
} Environments;

/* -- Networks ---------------------------------------------------------------------------------- */

/* c[i][s] = bias[i] + sum over k of a[i * row + k * column] b[k][s]. c may not overlap b.

rows is 1, 2 or a multiple of TILE. With constant arguments, the sums stay in registers. */
static inline __attribute__((always_inline)) void product(
    const int rows, const int depth, const float *a, const int row, const int column,
    const float *bias, const float (*restrict b)[BLOCK], float (*restrict c)[BLOCK])
{
    const int tile = rows < TILE ? rows : TILE;
    for (int s = 0; s < BLOCK; s += LANES)
        for (int i = 0; i < rows; i += tile) {
            Lanes sum[TILE];
            for (int t = 0; t < tile; t++)
                sum[t] = (Lanes){0} + (bias ? bias[i + t] : 0.0f);
            for (int k = 0; k < depth; k++) {
                const Lanes x = *(const Lanes *)&b[k][s];
                for (int t = 0; t < tile; t++)
                    sum[t] += a[(i + t) * row + k * column] * x;
            }
            for (int t = 0; t < tile; t++)
                *(Lanes *)&c[i + t][s] = sum[t];
        }
}

static inline float total_of(const Lanes *x)
{
    float sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += (*x)[l];
    return sum;
}

/* w[i][k] += sum over s of d[i][s] x[k][s], and bias[i] += sum over s of d[i][s].

rows is 1, 2 or a multiple of ROWS, and depth a multiple of COLUMNS. */
static inline __attribute__((always_inline)) void add_gradient(
    const int rows, const int depth, const float (*restrict d)[BLOCK],
    const float (*restrict x)[BLOCK], float *restrict w, float *restrict bias)
{
    const int tile = rows < ROWS ? rows : ROWS;
    for (int i = 0; i < rows; i += tile)
        for (int k = 0; k < depth; k += COLUMNS) {
            Lanes sum[ROWS][COLUMNS] = {{{0}}};
            for (int s = 0; s < BLOCK; s += LANES)
                for (int t = 0; t < tile; t++)
                    for (int j = 0; j < COLUMNS; j++)
                        sum[t][j] += *(const Lanes *)&d[i + t][s] * *(const Lanes *)&x[k + j][s];
            for (int t = 0; t < tile; t++)
                for (int j = 0; j < COLUMNS; j++)
                    w[(i + t) * depth + k + j] += total_of(&sum[t][j]);
        }
    for (int i = 0; i < rows; i++)
        for (int s = 0; s < BLOCK; s++)
            bias[i] += d[i][s];
}

static void apply_tanh(float (*x)[BLOCK])
{
    for (int i = 0; i < UNITS; i++)
        for (int s = 0; s < BLOCK; s++)
            x[i][s] = 1 - 2 / (expf(2 * fminf(x[i][s], 40)) + 1);
}

static void forward(const Network *net, int outputs, Block *b)
{
    product(UNITS, INPUTS, net->w1[0], INPUTS, 1, net->b1, b->x, b->h1);
    apply_tanh(b->h1);
    product(UNITS, UNITS, net->w2[0], UNITS, 1, net->b2, b->h1, b->h2);
    apply_tanh(b->h2);
    product(outputs, UNITS, net->w3[0], UNITS, 1, net->b3, b->h2, b->out);
}

/* Add the gradient of a loss, from its derivative d_out by the outputs of forward. */
static void backward(const Network *net, int outputs, const Block *b, const float (*d_out)[BLOCK],
                     Network *gradient)
{
    static float d2[UNITS][BLOCK], d1[UNITS][BLOCK];
    add_gradient(outputs, UNITS, d_out, b->h2, gradient->w3[0], gradient->b3);
    product(UNITS, outputs, net->w3[0], 1, UNITS, NULL, d_out, d2);
    for (int i = 0; i < UNITS; i++)
        for (int s = 0; s < BLOCK; s++)
            d2[i][s] *= 1 - b->h2[i][s] * b->h2[i][s];
    add_gradient(UNITS, UNITS, d2, b->h1, gradient->w2[0], gradient->b2);
    product(UNITS, UNITS, net->w2[0], 1, UNITS, NULL, d2, d1);
    for (int i = 0; i < UNITS; i++)
        for (int s = 0; s < BLOCK; s++)
            d1[i][s] *= 1 - b->h1[i][s] * b->h1[i][s];
    add_gradient(UNITS, INPUTS, d1, b->x, gradient->w1[0], gradient->b1);
}

/* -- Random numbers ---------------------------------------------------------------------------- */

/* Return a number in [0, 1); xorshift of Marsaglia (2003). */
static inline float uniform(uint32_t *state)
{
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    *state = x;
    return (float)(x >> 8) * (1.0f / 16777216);
}

static float normal(uint32_t *state)
{
    const float u = uniform(state) + 1e-7f;
    return sqrtf(-2 * logf(u)) * cosf(6.2831853f * uniform(state));
}

/* -- CartPole ---------------------------------------------------------------------------------- */

static void reset(const Environments *envs, int i)
{
    for (int j = 0; j < INPUTS; j++)
        envs->state[j][i] = uniform(&envs->random[i]) * 0.1f - 0.05f;
    envs->length[i] = 0;
}

/* Take a step in BLOCK environments from the first one, as Gymnasium's CartPole-v1 does, and reset
those whose episode ended. Add the lengths of finished episodes to total[0], and 1 to total[1]. */
static void step(const Environments *envs, int first, const float *restrict action,
                 float *restrict ended, double *total)
{
    float *restrict x = envs->state[0] + first, *restrict x_speed = envs->state[1] + first;
    float *restrict angle = envs->state[2] + first, *restrict angle_speed = envs->state[3] + first;
    float *restrict length = envs->length + first;
    for (int i = 0; i < BLOCK; i++) {
        const float sine = sinf(angle[i]), cosine = sqrtf(1 - sine * sine); /* a small angle */
        const float force = action[i] * 20 - 10;
        const float push = (force + 0.05f * angle_speed[i] * angle_speed[i] * sine) / 1.1f;
        const float turn = (9.8f * sine - cosine * push) /
                           (0.5f * (4.0f / 3 - 0.1f * cosine * cosine / 1.1f));
        x[i] += 0.02f * x_speed[i];
        x_speed[i] += 0.02f * (push - 0.05f * turn * cosine / 1.1f);
        angle[i] += 0.02f * angle_speed[i];
        angle_speed[i] += 0.02f * turn;
        length[i] += 1;
        ended[i] = (fabsf(x[i]) > 2.4f) | (fabsf(angle[i]) > 0.20943951f) | (length[i] >= 500);
    }
    for (int i = 0; i < BLOCK; i++)
        if (ended[i] > 0) {
            total[0] += length[i];
            total[1] += 1;
            reset(envs, first + i);
        }
}

/* -- PPO --------------------------------------------------------------------------------------- */

/* Choose actions of BLOCK environments from the first one, take the step, and store both. */
static void act(const Weights *weights, const Environments *envs, int first, const Samples *at,
                double *total)
{
    static Block block;
    for (int j = 0; j < INPUTS; j++) {
        memcpy(block.x[j], envs->state[j] + first, sizeof block.x[j]);
        memcpy(at->obs[j], envs->state[j] + first, sizeof block.x[j]);
    }
    forward(&weights->value, 1, &block);
    memcpy(at->value, block.out[0], sizeof block.out[0]);
    forward(&weights->policy, 2, &block);
    uint32_t *restrict random = envs->random + first;
    for (int s = 0; s < BLOCK; s++) {
        const float one = 1 / (1 + expf(block.out[0][s] - block.out[1][s]));
        const float chosen = uniform(&random[s]) < one;
        at->action[s] = chosen;
        at->log_prob[s] = logf(chosen > 0 ? one : 1 - one);
    }
    step(envs, first, at->action, at->ended, total);
}

/* Compute advantages (Schulman et al. 2016) and value targets; last: values after all steps. */
static void estimate(const Samples *samples, int envs, int steps, const float *last)
{
    for (int t = steps - 1; t >= 0; t--) {
        const int now = t * envs;
        const float *restrict value = samples->value + now, *restrict ended = samples->ended + now;
        const float *restrict next = t + 1 < steps ? value + envs : last;
        const float *after = samples->advantage + now + envs; /* of the next step */
        float *advantage = samples->advantage + now, *restrict target = samples->target + now;
        for (int i = 0; i < envs; i++) {
            const float goes_on = 1 - ended[i], rest = t + 1 < steps ? after[i] : 0;
            const float error = 1 + GAMMA * goes_on * next[i] - value[i];
            advantage[i] = error + GAMMA * LAMBDA * goes_on * rest;
            target[i] = advantage[i] + value[i];
        }
    }
}

/* Replace outputs by the derivative of the sum of the losses of BLOCK samples: clipped surrogate
and entropy for the policy's, clipped squared error for the value's. */
static void derive(const Samples *at, float (*restrict policy)[BLOCK], float *restrict value)
{
    for (int s = 0; s < BLOCK; s++) {
        const float logit = policy[1][s] - policy[0][s], odds = expf(-fabsf(logit));
        const float smaller = odds / (1 + odds), one = logit > 0 ? 1 - smaller : smaller;
        const float log_larger = -logf(1 + odds), log_smaller = log_larger - fabsf(logit);
        const float log_one = logit > 0 ? log_larger : log_smaller;
        const float log_zero = logit > 0 ? log_smaller : log_larger;
        const float log_prob = at->action[s] > 0 ? log_one : log_zero;
        const float ratio = expf(log_prob - at->log_prob[s]), advantage = at->advantage[s];
        const float bound = fminf(fmaxf(ratio, 1 - CLIP), 1 + CLIP);
        const float counts = ratio * advantage <= bound * advantage; /* else: clipped, constant */
        const float by_log_prob = -ratio * advantage * counts;
        const float by_entropy = ENTROPY_COEF * one * (1 - one) * logit; /* -dH/dlogit = p q l */
        policy[1][s] = by_log_prob * (at->action[s] - one) + by_entropy;
        policy[0][s] = -policy[1][s];
        const float error = value[s] - at->target[s], change = value[s] - at->value[s];
        const float near = fminf(fmaxf(change, -CLIP), CLIP) + at->value[s] - at->target[s];
        const float free = (fabsf(change) <= CLIP) | (error * error >= near * near);
        value[s] = VALUE_COEF * error * free;
    }
}

/* Clip the gradient to MAX_NORM, and take a step of Adam (Kingma & Ba 2015), the count-th. */
static void descend(float *restrict weights, float *restrict gradient, float *restrict mean,
                    float *restrict square, int count)
{
    float norm = 0;
    for (int i = 0; i < NUM_WEIGHTS; i++)
        norm += gradient[i] * gradient[i];
    const float factor = fminf(1, MAX_NORM / (sqrtf(norm) + 1e-6f));
    const float rate = LEARNING_RATE / (1 - powf(0.9f, (float)count));
    const float correction = 1 / (1 - powf(0.999f, (float)count));
    for (int i = 0; i < NUM_WEIGHTS; i++) {
        const float g = gradient[i] * factor;
        mean[i] = 0.9f * mean[i] + 0.1f * g;
        square[i] = 0.999f * square[i] + 0.001f * g * g;
        weights[i] -= rate * mean[i] / (sqrtf(square[i] * correction) + EPS);
    }
}

/* Return fields of samples from a position on. */
static Samples from(const Samples *samples, int position)
{
    Samples at;
    for (int j = 0; j < FIELDS; j++)
        ((float **)&at)[j] = ((float **)samples)[j] + position;
    return at;
}

/* Take one step on count samples, a multiple of BLOCK; advantages are normalised. */
static void train(Weights *weights, float *mean, float *square, const Samples *samples, int count,
                  int number)
{
    static Block policy, value;
    static Weights gradient;
    memset(&gradient, 0, sizeof gradient);
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++) {
        sum += samples->advantage[i];
        squares += samples->advantage[i] * samples->advantage[i];
    }
    const float middle = (float)(sum / count);
    const float scale = 1 / ((float)sqrt(fmax(squares / count - middle * middle, 0)) + 1e-8f);
    for (int i = 0; i < count; i++)
        samples->advantage[i] = (samples->advantage[i] - middle) * scale;
    for (int i = 0; i < count; i += BLOCK) {
        const Samples at = from(samples, i);
        for (int j = 0; j < INPUTS; j++) {
            memcpy(policy.x[j], at.obs[j], sizeof policy.x[j]);
            memcpy(value.x[j], at.obs[j], sizeof value.x[j]);
        }
        forward(&weights->policy, 2, &policy);
        forward(&weights->value, 1, &value);
        derive(&at, policy.out, value.out[0]);
        backward(&weights->policy, 2, &policy, policy.out, &gradient.policy);
        backward(&weights->value, 1, &value, value.out, &gradient.value);
    }
    for (int i = 0; i < NUM_WEIGHTS; i++)
        ((float *)&gradient)[i] /= (float)count;
    descend((float *)weights, (float *)&gradient, mean, square, number);
}

/* Copy count samples in a random order. */
static void gather(const Samples *samples, const int *order, int count, const Samples *to)
{
    for (int j = 0; j < FIELDS; j++) {
        const float *restrict field = ((float **)samples)[j];
        float *restrict copy = ((float **)to)[j];
        for (int i = 0; i < count; i++)
            copy[i] = field[order[i]];
    }
}

static void shuffle(int *order, int count, uint32_t *random)
{
    for (int i = count - 1; i > 0; i--) {
        const int j = (int)(uniform(random) * (float)(i + 1)), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}

/* -- The program ------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static Samples make_samples(int count)
{
    Samples samples;
    for (int j = 0; j < FIELDS; j++)
        ((float **)&samples)[j] = calloc(count, sizeof(float));
    return samples;
}

/* Weights of mean 0 and variance 2 / inputs, nearly 0 for the policy's outputs. */
static void initialise(Network *net, float last, uint32_t *random)
{
    memset(net, 0, sizeof *net);
    for (int i = 0; i < UNITS; i++) {
        for (int k = 0; k < INPUTS; k++)
            net->w1[i][k] = normal(random) * sqrtf(2.0f / INPUTS);
        for (int k = 0; k < UNITS; k++)
            net->w2[i][k] = normal(random) * sqrtf(2.0f / UNITS);
        for (int k = 0; k < 2; k++)
            net->w3[k][i] = normal(random) * last / sqrtf(UNITS);
    }
}

/* Create environments, each in a new episode. */
static Environments make_environments(int count, uint32_t *random)
{
    Environments envs = {.length = calloc(count, sizeof(float)),
                         .random = calloc(count, sizeof(uint32_t))};
    for (int j = 0; j < INPUTS; j++)
        envs.state[j] = calloc(count, sizeof(float));
    for (int i = 0; i < count; i++) {
        uniform(random);
        envs.random[i] = *random ^ (uint32_t)i * 2246822519u;
        reset(&envs, i);
    }
    return envs;
}

/* Fill samples with steps of all environments, their advantages and value targets. */
static void collect(const Weights *weights, const Environments *envs, int count, int steps,
                    const Samples *samples, float *last, double *total)
{
    static Block block;
    for (int t = 0; t < steps; t++)
        for (int i = 0; i < count; i += BLOCK) {
            const Samples at = from(samples, t * count + i);
            act(weights, envs, i, &at, total);
        }
    for (int i = 0; i < count; i += BLOCK) {
        for (int j = 0; j < INPUTS; j++)
            memcpy(block.x[j], envs->state[j] + i, sizeof block.x[j]);
        forward(&weights->value, 1, &block);
        memcpy(last + i, block.out[0], sizeof block.out[0]);
    }
    estimate(samples, count, steps, last);
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: ceiling ENVS STEPS EPOCHS MINIBATCHES SECONDS UPDATES SEED\n");
        return 2;
    }
    const int envs = atoi(argv[1]), steps = atoi(argv[2]), epochs = atoi(argv[3]);
    const int minibatches = atoi(argv[4]), count = envs * steps, part = count / minibatches;
    const int least = atoi(argv[6]) > 2 ? atoi(argv[6]) : 2;
    const double seconds = atof(argv[5]);
    if (envs % BLOCK || part % BLOCK || part * minibatches != count) {
        fprintf(stderr, "ENVS and the size of a minibatch must be multiples of %d\n", BLOCK);
        return 2;
    }
    static Weights weights;
    static float mean[NUM_WEIGHTS], square[NUM_WEIGHTS];
    uint32_t random = 2654435769u * (uint32_t)(atoi(argv[7]) + 1);
    initialise(&weights.policy, 0.01f, &random);
    initialise(&weights.value, 1, &random);
    const Environments world = make_environments(envs, &random);
    const Samples samples = make_samples(count), shuffled = make_samples(count);
    float *last = malloc(envs * sizeof(float));
    int *order = malloc(count * sizeof(int)), number = 0, updates = 0;
    for (int i = 0; i < count; i++)
        order[i] = i;
    double begun = 0, total[2] = {0}, length = 0;
    for (; updates < least || now() - begun < seconds; updates++) {
        if (updates == 1)
            begun = now();
        collect(&weights, &world, envs, steps, &samples, last, total);
        for (int step = 0; step < epochs * minibatches; step++) {
            const int m = step % minibatches;
            if (m == 0) {
                shuffle(order, count, &random);
                gather(&samples, order, count, &shuffled);
            }
            const Samples at = from(&shuffled, m * part);
            train(&weights, mean, square, &at, part, ++number);
        }
        if (total[1] >= 100) {
            length = total[0] / total[1];
            total[0] = total[1] = 0;
        }
    }
    printf("{\"sps\": %.1f, \"updates\": %d, \"episode_length\": %.1f}\n",
           (updates - 1) * (double)count / (now() - begun), updates, length);
    return 0;
}
