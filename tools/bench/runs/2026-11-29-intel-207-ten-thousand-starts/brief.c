__attribute__((noipa)) int twin(int x){ return x; }
__attribute__((noipa)) int leaf(int x){ return x * 7 + 3; }
int main(int c, char **v){ return twin(leaf(c)) == 10 ? 0 : 1; }
