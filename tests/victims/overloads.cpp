// Overloads of one name, and members of one name in two classes.
extern "C" {
#include "victim.h"
}
struct Server { static int count; };
int Server::count = 100;
struct Client { static int count; };
int Client::count = 200;
struct Flags { unsigned first : 3, second : 5; };
Flags flags;
struct Cart {
    int total = 0;
    __attribute__((noipa)) int add(int id) { return total += id; }
    __attribute__((noipa)) int add(double price) { return total += (int)price; }
    __attribute__((noipa)) int add(int id, int times) { return total += id * times; }
};
static void run(u64 times) {
    Cart cart;
    for (u64 i = 0; i < times; i++) {
        cart.add(7);
        cart.add(1.5);
        cart.add(2, 3);
        *(volatile int *)&Server::count = (int)i;
        *(volatile int *)&Client::count = -1;
        flags.second = (unsigned)i;
    }
    // A local variable of the same name, which has no address.
    unsigned long flags = times;
    TELL("one", flags);
}
int main() { return victim_serve(run); }
