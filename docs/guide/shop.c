/* The program in the examples of this guide: two threads take orders, price them, and store them.
 *     cp docs/guide/shop.c /tmp && cd /tmp
 *     cc -O2 -g -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -pthread -o shop shop.c && ./shop & */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

enum status { NEW, PAID, REJECTED };
struct customer { char name[16]; int level; };
struct order { uint32_t id; int items; double price; enum status status; struct customer *customer; };

struct { long orders; long rejected; } shop;
static struct customer customers[] = {{"ann", 1}, {"bob", 2}, {"cleo", 3}};

KEEP static double tax(double price, int level) { return price * (level > 2 ? 1.07 : 1.19); }

KEEP int price(struct order *order, int items) {
    order->price = 0;
    for (int i = 0; i < items * 40; i++) order->price += tax(i * 0.25, order->customer->level);
    return order->price > 60000 ? -1 : 0;
}
KEEP void store(struct order *order, const char *table) {
    char *row = malloc(64 + order->items * 16);
    snprintf(row, 64, "%s %u %.2f", table, order->id, order->price);
    if (order->id % 64 == 0) usleep(300);
    free(row);
}
KEEP int handle(struct order *order) {
    __atomic_fetch_add(&shop.orders, 1, __ATOMIC_RELAXED);
    if (price(order, order->items) < 0) {
        order->status = REJECTED;
        __atomic_fetch_add(&shop.rejected, 1, __ATOMIC_RELAXED);
        store(order, "rejected");
        return -1;
    }
    order->status = PAID;
    store(order, "paid");
    return 0;
}
static void *work(void *first) {
    char name[16];
    snprintf(name, sizeof name, "worker-%ld", (long)first);
    pthread_setname_np(pthread_self(), name);
    for (uint32_t id = (uintptr_t)first;; id += 2) {
        struct order order = {.id = id, .items = id % 7 + id % 19, .customer = &customers[id % 3]};
        handle(&order);
        usleep(500);
    }
    return NULL;
}
int main(void) {
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_join(threads[0], NULL);
}
