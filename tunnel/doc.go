// Package tunnel is the protocol between a server and an agent, on top of a transport.
//
// The mental model: an agent makes one Session with a server. Both ends may open streams on
// it, and a Stream is a net.Conn that can half-close. Every stream begins with one dial
// frame, in which the opener names a target, and one answer frame, in which the other end
// says whether it is connected to the target:
//
//	opener                                   answering end
//	  │ Open                                        │
//	  │──── dial: tcp, node-1:10250, metadata ─────▶│ ReadRequest
//	  │                                             │ … dials the target …
//	  │◀─── answer: ok, or a code and a text ───────│ Accept or Reject
//	  │◀═══ bytes, both ways, half-closes kept ════▶│ Splice
//
// There are no connection numbers and no table of pending dials: the stream is the pending
// dial, and closing it cancels the dial. The reason of a failed dial is sent as a Code, which
// the answering end derives from the type of the error. So a connection that is refused on a
// node is errors.Is(err, syscall.ECONNREFUSED) at the caller.
//
// The first stream of a session is the control stream, which the dialing end opens. It begins
// with hello and welcome, or goodbye if the server refuses the session. Then it carries pings,
// the notice that an end is draining, and the reason for which an end closes the session.
// wire.go has the frames, Control the behaviour.
//
// The life of a byte from a node's target to a client of the server, over qmux:
//
//	agent/link.go           has dialed the target, and splices it with the stream
//	tunnel/splice.go        hands the target to the stream
//	tunnel/qmux/source.go   reads the target's socket into a block, once it is readable
//	tunnel/qmux/send.go     the block becomes a segment of the stream, retained until
//	                        acknowledged
//	tunnel/qmux/paths.go    chooses the connection
//	tunnel/qmux/write.go    the caller, if no write is in progress, writes one turn of
//	                        records from their blocks to TLS
//	tunnel/qmux/batch.go    makes one system call of the turn's TLS records
//	tunnel/qmux/conn.go     the server's reader reads the record from TLS into a block
//	tunnel/qmux/frames.go   finds the stream
//	tunnel/qmux/receive.go  puts the data in order and updates the window
//	tunnel/qmux/sink.go     writes it to the client's socket, as far as that does not block
//	tunnel/qmux/control.go  sends the acknowledgement
//	server/connect          has read the client's CONNECT, and spliced it with the stream
//	                        of Hub.DialContext
//
// What this package is not: it does not authenticate (package auth does), it does not choose
// routes (package server does), and it does not multiplex. Transports do, one package each:
// qmux, overyamux, overh2 and overquic. Package carrier makes the TLS connections of those
// over TCP. Every transport passes the suite in package tunneltest.
package tunnel

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
