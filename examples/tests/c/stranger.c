// Asks for shared memory as another user: `stranger UID PLACE TOKEN`, both in hexadecimal. Says what came.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 4 || setuid(atoi(arguments[1])) != 0)
        return 3;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, 64, "sublet-memory-%s", arguments[2]) + 1;
    int line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(line, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + length) != 0)
        return 4;
    unsigned long long token = strtoull(arguments[3], NULL, 16);
    send(line, &token, sizeof token, MSG_NOSIGNAL);
    char answer[64];
    puts(recv(line, answer, sizeof answer, 0) > 0 ? "answered" : "refused");
    return 0;
}
