// Package tunnel is what a server and an agent say to each other, and nothing
// of how their bytes get across.
//
// The mental model: an agent throws one rope to a server. The rope is a
// Session; both ends may open streams on it, and a Stream is a net.Conn that
// can half-close. Every stream begins with one dial frame, in which the opener
// names a target, and one answer frame, in which the other end says whether it
// got there:
//
//	opener                                   answering end
//	  │ Open                                        │
//	  │──── dial: tcp, node-1:10250, metadata ─────▶│ ReadRequest
//	  │                                             │ … dials the target …
//	  │◀─── answer: ok, or a code and a text ───────│ Accept or Reject
//	  │◀═══ bytes, both ways, half-closes kept ════▶│ Splice
//
// There are no connection numbers and no table of pending dials: the stream is
// the pending dial, and forgetting it is closing it. Why a dial failed travels
// as a Code that was decided where the error still had a type, so that a
// refused connection on a node is errors.Is(err, syscall.ECONNREFUSED) at the
// caller, two networks away.
//
// The first stream of a session is opened by the end that dialed and is the
// control stream. It starts with hello and welcome (or goodbye, when the server
// does not want the session) and then carries pings, the notice that an end is
// draining, and the reason for which an end hangs up. See wire.go for the
// bytes, Control for the behaviour.
//
// The life of a byte that a node's target says to a client of the server, over qmux:
//
//	agent/link.go           Serve has had the request; Answer joins stream and target
//	tunnel/splice.go        waits until the target has something, and has the stream fetch it
//	tunnel/qmux/source.go   reads it from the target's socket into a block
//	tunnel/qmux/send.go     numbers it by its offset, and keeps it until it is acknowledged
//	tunnel/qmux/write.go    puts it into a record and gives that to TLS
//	tunnel/qmux/conn.go     the server's reader takes the record off TLS
//	tunnel/qmux/receive.go  puts it in order
//	tunnel/qmux/sink.go     writes it to the client's socket
//	server/connect          had the client's CONNECT, and joined it to Hub.DialContext's stream
//
// What this package is not: it authenticates nobody (package auth does), it
// chooses no route (package server does), and it is no multiplexer. Transports
// live below it, one package each: qmux, overyamux, overh2 and overquic. Those over
// TCP get their TLS connections from package carrier. Each must pass the suite in
// tunneltest.
package tunnel

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
