// Constructors of a class with a virtual base: of a whole object, and of a base of another.
extern "C" {
#include "victim.h"
}
struct Root {
    int root;
    Root(int r);
    virtual ~Root();
};
Root::Root(int r) : root(r) {}
Root::~Root() {}
struct Middle : virtual Root {
    int a;
    long b;
    Middle(int a, long b);
    ~Middle();
};
Middle::Middle(int a, long b) : Root(1), a(a), b(b) {}
Middle::~Middle() {}
struct Leaf : Middle {
    Leaf(int c);
    ~Leaf();
};
Leaf::Leaf(int c) : Root(2), Middle(c + 1, 77) {}
Leaf::~Leaf() {}
static void run(u64 times) {
    for (u64 i = 0; i < times; i++) {
        Middle middle(3, 55);
        Leaf leaf(100);
        asm volatile("" : : "r"(&middle), "r"(&leaf) : "memory");
    }
    TELL("made", times);
}
int main() { return victim_serve(run); }
