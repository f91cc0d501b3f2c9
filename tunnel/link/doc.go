// Package link is a byte pipe that outlives its connections.
//
// The mental model: a Link is a net.Conn between two processes. Below it is one
// transport at a time, a TLS connection as a rule. When the transport is lost
// the link is parked: reads and writes wait, the dialing end dials again, both
// ends say how far they got, and the rest is sent again. Whoever uses the link
// sees a pause and every byte once. Only when no transport comes back within
// the detach window do both ends fail, with an *Error.
//
// Bytes have absolute offsets, from 0 at the link's birth. What is written goes
// into a ring, in which it stays until the peer has acknowledged its offset; one
// goroutine sends what has gathered there. So small writes are joined for free,
// and being able to replay costs one copy of each byte. Reading costs nothing
// extra: whoever calls Read reads from the transport, straight into its own
// buffer, and sees to the frames that come along.
//
// A Batch between TLS and TCP saves system calls.
//
// Liveness. After 14 s of silence the dialing end asks for a sign of life, 5.6 s
// later it gives the transport up; the accepting end only asks when that
// question is overdue. On the wire, with TLS 1.3, TCP and IPv4, one exchange is
// 212 bytes (82 for the ping, 78 for the pong, 52 for the acknowledgement of
// that) and an idle hour 54 KiB; over IPv6 an exchange is 272 bytes. A metered
// link asks less and less often, as far as its path lets it: an idle day is 32
// KiB.
//
// Bounds. The ring holds at most Config.Buffer bytes and takes memory in chunks
// as it needs them; beyond the first 4 KiB it asks the process's Budget. A full
// ring makes Write wait: nothing is ever dropped. As much lies in it
// unsent as the path carries in a quarter of a second, 8 KiB at least and 128 KiB at
// most, lest a keystroke queue behind bulk. Bytes are acknowledged when Read
// has handed them out, so a reader that stalls holds up its peer's writer, and
// what arrives for it meanwhile is bounded by the peer's ring.
//
// Safety. A link belongs to the identity that opened it. To resume takes that
// identity, proved anew by the transport, and a secret that each resumption
// replaces. Resumptions are numbered: one that comes late is turned away, and
// taking a new transport closes the old one before the first byte is sent on
// the new, so that no two ever carry the link at a time.
//
// What this package is not: it does not encrypt or authenticate (TLS below it
// does), it survives neither process, and it is no multiplexer.
package link
