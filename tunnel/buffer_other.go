// Systems whose sockets are read and written as any connection is.

//go:build !unix

package tunnel

import "errors"

// A SocketReader reads no socket here.
type SocketReader struct{}

// Open is false.
func (*SocketReader) Open(any) bool { return false }

// Read fails.
func (*SocketReader) Read(Memory) (int, error) { return 0, errors.ErrUnsupported }

// A SocketWriter writes to no socket here.
type SocketWriter struct{}

// Open is false.
func (*SocketWriter) Open(any) bool { return false }

// Write fails.
func (*SocketWriter) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
