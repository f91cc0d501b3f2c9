// Package carrier makes the TLS connections over TCP that transports run on.
//
// The dialing end has a Dialer for one server, the accepting end a listener from Listen;
// what a connection is for is theirs to say who asked for it. The life of a session on a
// library is a Session. From the top, a connection is
//
//	tls.Conn      TLS 1.3, mutual
//	below         what the transport puts there, if anything
//	handshake     the accepting end only: takes turns while shaking hands
//	net.TCPConn   with the socket options of sockopt.go
//
// Handshakes after a Dialer's first are resumptions (RFC 8446, 2.2) where the server's
// tickets allow it. They save the signatures and nothing else: for each of them package
// tls checks that the client's certificate chain has not expired and still ends in an
// authority that is trusted now.
//
// Strangers are bounded: see admission.go.
//
// What this package is not: it multiplexes nothing, and it does not say who is welcome.
// Options.TLS does.
package carrier
