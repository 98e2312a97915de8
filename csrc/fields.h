/* Structs that Python fills, each written once as a list of fields.
 *
 * From that list come the struct itself and the text that Python makes its own view of the struct from
 * (selattn/utils/native.py), so that a field cannot stand in one place here and in another there.
 */
#ifndef SELATTN_FIELDS_H
#define SELATTN_FIELDS_H
#include <cstdint>

/* A list takes these as its arguments: INT(name), REAL(name), STRIDES(name), and POINTER(type, name). */
#define AS_INT(name) int64_t name;
#define AS_REAL(name) double name;
#define AS_STRIDES(name) int64_t name[3]; /* in elements, for batch, head and row */
#define AS_POINTER(type, name) type *name;

#define SAY_INT(name) "int " #name "\n"
#define SAY_REAL(name) "real " #name "\n"
#define SAY_STRIDES(name) "strides " #name "\n"
#define SAY_POINTER(type, name) "pointer " #name "\n"

#define STRUCT(Name, LIST)                                                                                                     \
    struct Name {                                                                                                              \
        LIST(AS_INT, AS_REAL, AS_STRIDES, AS_POINTER)                                                                          \
    };                                                                                                                         \
    static constexpr const char *Name##_FIELDS = LIST(SAY_INT, SAY_REAL, SAY_STRIDES, SAY_POINTER);
#endif
