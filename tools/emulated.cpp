/* One call of the library, read from a file, in a process of another architecture: see emulate.py.
 *
 * The file: int64 which function, int64 size of its struct, the struct, int64 number of pointers, and for each of them int64
 * offset in the struct, int64 size of what it points to, and that. What they point to after the call goes to standard output.
 */
#include "native.cpp"

#include <cstdio>

static int64_t number(FILE *file) {
    int64_t found = 0;
    if (std::fread(&found, sizeof found, 1, file) != 1) std::exit(3);
    return found;
}

int main(int, char **argv) {
    FILE *file = std::fopen(argv[1], "rb");
    if (!file) return 2;
    const int64_t function = number(file), size = number(file);
    std::vector<int64_t> problem((size + 7) / 8); /* aligned as the struct wants it */
    if (std::fread(problem.data(), 1, size, file) != (size_t)size) return 3;
    const int64_t count = number(file);
    std::vector<std::vector<char>> buffers(count);
    for (auto &buffer : buffers) {
        const int64_t offset = number(file);
        buffer.resize(number(file));
        if (std::fread(buffer.data(), 1, buffer.size(), file) != buffer.size()) return 3;
        void *at = buffer.data();
        std::memcpy((char *)problem.data() + offset, &at, sizeof at);
    }
    const Problem *p = (const Problem *)problem.data();
    if (function ? selattn_backward(p) : selattn_forward(p)) return 4;
    for (const auto &buffer : buffers) std::fwrite(buffer.data(), 1, buffer.size(), stdout);
    return 0;
}
