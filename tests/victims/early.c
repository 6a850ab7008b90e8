/* A program whose library works before it does. Ends with 0 if all values are right. */
int early(int x);
int main(void) {
    int sum = 0;
    for (int i = 0; i < 3; i++) sum += early(i);
    return sum != 33;
}
