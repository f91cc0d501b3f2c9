// Package agent keeps a node's link to its servers and answers the streams
// that arrive over it.
//
// An agent only dials out. [Agent.Run] opens one session to one of the
// configured servers, greets it as the node of its certificate, and holds the
// session for as long as it lives; when it ends, the next server is tried, at
// once the first time and then after a back-off drawn with full jitter.
//
// Two directions use the session. Streams the server opens are checked against
// a target policy that admits, unless --allow-target names more, only what belongs to the
// node: its kubelet, which is handed the stream in process, and its pods.
// Streams the node opens ([Agent.DialContext]) go to the API server.
package agent
