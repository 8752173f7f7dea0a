/* DynamoDB Local listens on every address and cannot be told otherwise. Loaded before it, this makes every
   bind() one to the loopback address. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

int bind(int descriptor, const struct sockaddr *wanted, socklen_t size) {
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t)) dlsym(RTLD_NEXT, "bind");
    if (wanted->sa_family != AF_INET)
        return real(descriptor, wanted, size);
    struct sockaddr_in here = *(const struct sockaddr_in *) wanted;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return real(descriptor, (const struct sockaddr *) &here, sizeof here);
}
