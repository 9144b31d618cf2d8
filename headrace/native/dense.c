/* Forward passes, gradients and updates of the built-in dense networks.

The functions are compiled for float and double, and for several instruction sets, of which the
first that the processor has is used. See library.py for their arguments, learner/native.py for
their use, and ops/losses.py for the formulas of the losses. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS 8
#define MAX_PARTS 32
#define PAD 16
#define ROWS 48 /* observations on which a network acts at a time */
#define LOG_2PI 1.8378770664093453
#define NUM_DATA 6 /* arrays of numbers in Terms */
#define LONGEST_STEP 1e19 /* as in learner/finite_checks.py */
#define ACTION_BYTES(part) \
    (int64_t)((part).kind == CATEGORICAL ? sizeof(int64_t) : (part).size * sizeof(real))

enum { TANH, RELU, ELU };
enum { CATEGORICAL, GAUSSIAN };
enum { TARGET, TARGET_SQ, ERROR, ERROR_SQ, ENTROPY, APPROX_KL, POLICY_LOSS, CLIPFRAC, VALUE_LOSS,
       NUM_SUMS };

typedef struct {
    int64_t kind, size; /* number of choices, or of dimensions */
    const void *action; /* int64, or of the network's precision */
    int64_t stride;     /* elements from one step's action to the next */
} Part;

typedef struct {
    int64_t torsos, layers, activation, outputs, free_params, parts, num_mask;
    int64_t sizes[MAX_LAYERS + 1]; /* of the inputs, and of each layer */
    int64_t weight[2][MAX_LAYERS], bias[2][MAX_LAYERS]; /* positions in the flat vector */
    int64_t policy_weight, policy_bias, value_weight, value_bias, log_std;
    double value_scale, value_mean; /* V = scale * output + mean */
    const void *center, *scale;     /* of the inputs [sizes[0]]; null: inputs are used as they are */
    double limit;                   /* of normalised inputs */
    const void *middle, *half;      /* of the bounds of outputs; half infinite or null: none */
    Part part[MAX_PARTS];
} Network;

typedef struct {
    const void *advantage, *target, *behaviour, *old_log_prob, *old_value, *weight; /* [n], null */
    const uint8_t *valid;                                                           /* [n] */
    double clip, max_ratio, epsilon, value_clip; /* a clip below 0: none */
    double kl_coef, value_coef, entropy_coef, value_scale; /* scale 0: values aren't trained */
    double bounds_coef;
} Terms;

typedef struct {
    const void *packed, *log_std;  /* layers packed one after another; [net->free_params] */
    int64_t is_double, is_wide;    /* types of observations, and of net->center */
    const uint8_t *mask;           /* [steps, num_mask], or null */
    const float *noise;            /* [steps, net->outputs], or null: no actions are chosen */
    void *params, *log_prob;       /* [steps, net->outputs + net->free_params], or null; [steps] */
} Acting;

typedef struct {
    double learning_rate, beta1, beta2, eps, step;
} Optimizer;

typedef struct {
    int64_t steps, most, size; /* optimiser steps, maximum samples per part, number of parameters */
    int64_t parts, bytes;      /* parts of a minibatch; memory per part: update_bytes() */
    int64_t threads;           /* at most as many as parts */
    const int64_t *order;      /* samples of all steps, one step after another */
    const int64_t *start;      /* [steps + 1] positions in order */
    const void *x;             /* [samples, inputs] */
    const uint8_t *mask;       /* [samples, num_mask], or null */
    int64_t normalize;         /* scale the advantages of each step */
    double max_norm;           /* of a step's gradient, which is clipped */
    void *gradient, *mean, *square; /* [size]; 0 where the network has no parameter, and moments */
    void *memory;                   /* [parts, bytes] */
    double *sums;                   /* [steps, NUM_SUMS + 2]: and valid steps, gradient norm */
    int64_t outside;                /* choices of the last step that are out of range */
    double norm;                    /* of its gradient */
} Update;

static inline int64_t pad(int64_t size)
{
    return (size + PAD - 1) / PAD * PAD;
}

/* Padded units of the widest layer, without inputs and heads. */
static int64_t widest(const Network *net)
{
    int64_t most = 0;
    for (int64_t i = 1; i <= net->layers; i++)
        most = pad(net->sizes[i]) > most ? pad(net->sizes[i]) : most;
    return most;
}

/* Elements that hold any weight matrix with padded rows, or any packed layer. */
static int64_t packed_size(const Network *net)
{
    int64_t most = (pad(net->sizes[net->layers]) + 1) * pad(net->outputs);
    for (int64_t i = 0; i < net->layers; i++) {
        const int64_t size = (pad(net->sizes[i]) + 1) * pad(net->sizes[i + 1]);
        most = size > most ? size : most;
    }
    return most;
}

/* Elements of work for n steps. */
int64_t workspace(const Network *net, int64_t n)
{
    int64_t size = n * pad(net->sizes[0]);
    for (int64_t i = 1; i <= net->layers; i++)
        size += net->torsos * n * pad(net->sizes[i]);
    return size + packed_size(net) + pad(n) + n * pad(net->outputs) + 2 * n * widest(net);
}

/* Return the bytes of memory for a part of a minibatch.

most: maximum samples per part. parameters: elements of the flat vector, of size bytes each. */
int64_t update_bytes(const Network *net, int64_t most, int64_t parameters, int64_t size)
{
    int64_t elements = most * (net->sizes[0] + 2 * net->outputs + 9) + workspace(net, most);
    int64_t bytes = most * (1 + net->num_mask), blocks = 15 + net->parts;
    elements += parameters;
    for (int64_t p = 0; p < net->parts; p++)
        bytes += most * (net->part[p].kind == CATEGORICAL ? 8 : net->part[p].size * size);
    return (elements * size + bytes + blocks * 64 + 63) / 64 * 64;
}

#include "team.inc"

#define PASTE_(a, b, c) a##_##b##_##c
#define PASTE(a, b, c) PASTE_(a, b, c)
#define NAME(x) PASTE(x, PRECISION, SET)

#define SET base
#define VECTOR_BYTES 16
#include "precisions.inc"
#undef SET
#undef VECTOR_BYTES

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(ONE_SET)
#define HAS_SETS 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define SET avx2
#define VECTOR_BYTES 32
#include "precisions.inc"
#undef SET
#undef VECTOR_BYTES
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")
#define SET avx512
#define VECTOR_BYTES 64
#include "precisions.inc"
#undef SET
#undef VECTOR_BYTES
#pragma GCC pop_options
#endif

#ifndef SOURCES
#define SOURCES 0
#endif

/* Return the CRC-32 of the sources of this library, which setup.py computes. */
int64_t sources(void)
{
    return SOURCES;
}

typedef void (*Function)(void);

/* Return the best instruction set of this processor: 0, 1 (AVX2) or 2 (AVX-512). */
int64_t best_set(void)
{
#ifdef HAS_SETS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 1;
#endif
    return 0;
}

/* Return a function by its number in TABLE, for double (0) or float (1) and an instruction set. */
Function function(int64_t number, int64_t is_float, int64_t set)
{
#define TABLE(set)                                                                              \
    {{(Function)forward_double_##set, (Function)forward_float_##set},                           \
     {(Function)score_double_##set, (Function)score_float_##set},                               \
     {(Function)backward_double_##set, (Function)backward_float_##set},                         \
     {(Function)divide_double_##set, (Function)divide_float_##set},                             \
     {(Function)descend_double_##set, (Function)descend_float_##set},                           \
     {(Function)update_double_##set, (Function)update_float_##set},                             \
     {(Function)pack_double_##set, (Function)pack_float_##set},                                 \
     {(Function)act_double_##set, (Function)act_float_##set}}
#ifdef HAS_SETS
    static const Function sets[3][8][2] = {TABLE(base), TABLE(avx2), TABLE(avx512)};
#else
    static const Function sets[1][8][2] = {TABLE(base)};
#endif
    return sets[set][number][is_float];
}
