/* The Python face of the extension: buffers in, buffers filled, the interpreter free meanwhile. Sizes are checked here;
   dtypes, and which arguments make sense, in draws.py and kernels.py. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "kernels.h"

static const char *cipher; /* NULL without AES instructions */

static int is_float_buffer(const Py_buffer *buffer) {
    if (buffer->len % (Py_ssize_t)sizeof(float) == 0 && (uintptr_t)buffer->buf % sizeof(float) == 0) return 1;
    PyErr_SetString(PyExc_ValueError, "a buffer must hold whole, aligned float32 values");
    return 0;
}

static int is_key(const Py_buffer *key) {
    if (cipher == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this processor has no AES instructions");
        return 0;
    }
    if (key->len == 32) return 1;
    PyErr_SetString(PyExc_ValueError, "key must have 32 bytes");
    return 0;
}

static PyObject *finish(int done, Py_buffer *in, Py_buffer *out) {
    PyBuffer_Release(in);
    PyBuffer_Release(out);
    if (!done) return NULL;
    return Py_NewRef(Py_None);
}

static PyObject *key_stream(PyObject *module, PyObject *args) {
    Py_buffer key, out;
    unsigned long long start;
    round_keys keys;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*Kw*", &key, &start, &out)) return NULL;
    int valid = is_key(&key);
    if (valid) {
        Py_BEGIN_ALLOW_THREADS;
        expand_key(key.buf, &keys);
        write_key_stream(&keys, start, out.buf, (size_t)out.len);
        Py_END_ALLOW_THREADS;
    }
    return finish(valid, &key, &out);
}

static PyObject *normals_from_stream(PyObject *module, PyObject *args) {
    Py_buffer key, out;
    unsigned long long start;
    float std;
    int threads;
    round_keys keys;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*Kw*fi", &key, &start, &out, &std, &threads)) return NULL;
    int valid = is_key(&key) && is_float_buffer(&out);
    if (valid) {
        Py_BEGIN_ALLOW_THREADS;
        expand_key(key.buf, &keys);
        draw_from_stream(&keys, start, out.buf, (size_t)out.len / sizeof(float), std, threads);
        Py_END_ALLOW_THREADS;
    }
    return finish(valid, &key, &out);
}

static PyObject *normals_from_bytes(PyObject *module, PyObject *args) {
    Py_buffer raw, out;
    float std;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*f", &raw, &out, &std)) return NULL;
    int valid = is_float_buffer(&out);
    size_t count = (size_t)out.len / sizeof(float);
    if (valid && (size_t)raw.len != bytes_for(count)) {
        PyErr_Format(PyExc_ValueError, "%zu draws take %zu bytes, got %zd", count, bytes_for(count), raw.len);
        valid = 0;
    }
    if (valid) {
        Py_BEGIN_ALLOW_THREADS;
        draw_from_bytes(raw.buf, out.buf, count, std);
        Py_END_ALLOW_THREADS;
    }
    return finish(valid, &raw, &out);
}

static int are_whole_values(const Py_buffer *buffer, int size) {
    if (buffer->len % size == 0 && (uintptr_t)buffer->buf % (uintptr_t)size == 0) return 1;
    PyErr_Format(PyExc_ValueError, "a buffer must hold whole, aligned values of %d bytes", size);
    return 0;
}

/* Sums and parameters (or None, whose buffer is NULL) as entries. */
static int as_entries(const Py_buffer *sums, const Py_buffer *parameters, int size, entries *found) {
    if (size != sizeof(float) && size != sizeof(double)) {
        PyErr_Format(PyExc_ValueError, "entries are float32 or float64, got values of %d bytes", size);
        return 0;
    }
    if (!are_whole_values(sums, size)) return 0;
    if (parameters->buf != NULL && (!are_whole_values(parameters, size) || parameters->len != sums->len)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "%zd bytes of parameters do not fit %zd of sums",
                         parameters->len, sums->len);
        return 0;
    }
    found->sums = sums->buf;
    found->parameters = parameters->buf;
    found->size = (size_t)size;
    found->count = (size_t)sums->len / (size_t)size;
    return 1;
}

static int is_as_long(const Py_buffer *raw, size_t count) {
    if ((size_t)raw->len == exact_bytes_for(count)) return 1;
    PyErr_Format(PyExc_ValueError, "%zu draws take %zu bytes, got %zd", count,
                 exact_bytes_for(count), raw->len);
    return 0;
}

static PyObject *exact_from_bytes(PyObject *module, PyObject *args) {
    Py_buffer raw, out;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*", &raw, &out)) return NULL;
    size_t count = (size_t)out.len / sizeof(double);
    int valid = are_whole_values(&out, sizeof(double)) && is_as_long(&raw, count);
    if (valid) {
        Py_BEGIN_ALLOW_THREADS;
        exact_normals(raw.buf, out.buf, count);
        Py_END_ALLOW_THREADS;
    }
    return finish(valid, &raw, &out);
}

static PyObject *release_with_bytes(PyObject *module, PyObject *args) {
    Py_buffer raw, sums, parameters;
    int size;
    grid grid;
    entries entries;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*z*iddd", &raw, &sums, &parameters, &size, &grid.units_per_one,
                          &grid.units_per_std, &grid.factor))
        return NULL;
    int valid = as_entries(&sums, &parameters, size, &entries) && is_as_long(&raw, entries.count);
    if (valid) {
        Py_BEGIN_ALLOW_THREADS;
        release_from_bytes(raw.buf, &entries, &grid);
        Py_END_ALLOW_THREADS;
    }
    if (parameters.buf != NULL) PyBuffer_Release(&parameters);
    return finish(valid, &raw, &sums);
}

static PyObject *release_with_stream(PyObject *module, PyObject *args) {
    Py_buffer key, sums, parameters;
    unsigned long long start;
    int size, threads;
    grid grid;
    entries entries;
    round_keys keys;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*Kw*z*idddi", &key, &start, &sums, &parameters, &size, &grid.units_per_one,
                          &grid.units_per_std, &grid.factor, &threads))
        return NULL;
    int valid = is_key(&key) && as_entries(&sums, &parameters, size, &entries);
    if (valid) {
        Py_BEGIN_ALLOW_THREADS;
        expand_key(key.buf, &keys);
        release_from_stream(&keys, start, &entries, &grid, threads);
        Py_END_ALLOW_THREADS;
    }
    if (parameters.buf != NULL) PyBuffer_Release(&parameters);
    return finish(valid, &key, &sums);
}

static PyObject *dawson(PyObject *module, PyObject *args) {
    Py_buffer x, out;
    float inner, outer;
    int threads;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*ffi", &x, &out, &inner, &outer, &threads)) return NULL;
    int valid = is_float_buffer(&x) && is_float_buffer(&out);
    if (valid && x.len != out.len) {
        PyErr_Format(PyExc_ValueError, "x and out must have the same size, got %zd and %zd bytes", x.len, out.len);
        valid = 0;
    }
    if (valid) {
        Py_BEGIN_ALLOW_THREADS;
        add_dawson(out.buf, x.buf, (size_t)out.len / sizeof(float), inner, outer, threads);
        Py_END_ALLOW_THREADS;
    }
    return finish(valid, &x, &out);
}

static PyObject *squares(PyObject *module, PyObject *args) {
    Py_buffer x, scale, out;
    int threads;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*z*w*i", &x, &scale, &out, &threads)) return NULL;
    size_t rows = (size_t)out.len / sizeof(float), columns = out.len ? (size_t)(x.len / out.len) : 0;
    int valid = is_float_buffer(&x) && is_float_buffer(&out) && (scale.buf == NULL || is_float_buffer(&scale));
    if (valid && (size_t)x.len != rows * columns * sizeof(float)) {
        PyErr_Format(PyExc_ValueError, "%zd bytes cannot be %zu rows, all as long", x.len, rows);
        valid = 0;
    }
    if (valid && rows && scale.buf != NULL && (size_t)scale.len != columns * sizeof(float)) {
        PyErr_Format(PyExc_ValueError, "a scale of %zd bytes does not fit %zu columns", scale.len, columns);
        valid = 0;
    }
    if (valid) {
        Py_BEGIN_ALLOW_THREADS;
        row_squares(x.buf, scale.buf, out.buf, rows, columns, threads);
        Py_END_ALLOW_THREADS;
    }
    if (scale.buf != NULL) PyBuffer_Release(&scale);
    return finish(valid, &x, &out);
}

static PyMethodDef methods[] = {
    {"key_stream", key_stream, METH_VARARGS, "key_stream(key, start, out): AES-256-CTR from byte start on."},
    {"normals_from_stream", normals_from_stream, METH_VARARGS,
     "normals_from_stream(key, start, out, std, threads): float32 noise from the key stream."},
    {"normals_from_bytes", normals_from_bytes, METH_VARARGS,
     "normals_from_bytes(raw, out, std): float32 noise from given bytes."},
    {"exact_from_bytes", exact_from_bytes, METH_VARARGS,
     "exact_from_bytes(raw, out): N(0, 1) in double precision from given bytes."},
    {"release_from_bytes", release_with_bytes, METH_VARARGS,
     "release_from_bytes(raw, sums, parameters, size, units_per_one, units_per_std, factor): noise on a grid, from given\n"
     "bytes, into sums, or from sums into parameters that are not None."},
    {"release_from_stream", release_with_stream, METH_VARARGS,
     "release_from_stream(key, start, sums, parameters, size, units_per_one, units_per_std, factor, threads): the same,\n"
     "from the key stream."},
    {"add_dawson", dawson, METH_VARARGS,
     "add_dawson(x, out, inner, outer, threads): out += outer * D(inner * x) in float32."},
    {"row_squares", squares, METH_VARARGS,
     "row_squares(x, scale, out, threads): sums of squares of the rows of a float32 matrix, times a scale or None; out\n"
     "has as many values as there are rows."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_kernels", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__kernels(void) {
    choose_transform();
    const char *instructions = choose_release();
    cipher = choose_cipher();
    choose_dawson();
    choose_squares();
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddStringConstant(module, "TRANSFORM", instructions) < 0 ||
        PyModule_AddStringConstant(module, "CIPHER", cipher ? cipher : "") < 0 ||
        PyModule_AddIntConstant(module, "BLOCK_PAIRS", BLOCK_PAIRS) < 0 ||
        PyModule_AddIntConstant(module, "EXACT_PAIRS", EXACT_PAIRS) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
