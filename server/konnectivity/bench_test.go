// The cost of a GB through the front end, in time and in CPU.

package konnectivity

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// BenchmarkEcho sends pieces of 32 KiB through the front end on a unix socket, with
// konnectivity's client and a target in this process that echoes, and reads them back.
// The CPU is that of the process: client, front end and target. Bytes count once.
func BenchmarkEcho(b *testing.B) {
	socket := onSocket(b, Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		return echoes(b), nil
	}})
	conn, err := dialSocket(b.Context(), socket, "node-1:10250")
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	piece := make([]byte, 32<<10)
	b.SetBytes(int64(len(piece)))
	b.ResetTimer()
	cpu := tunneltest.CPU()
	sent := make(chan error, 1)
	go func() {
		for range b.N {
			if _, err := conn.Write(piece); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	if _, err := io.CopyN(io.Discard, conn, int64(b.N*len(piece))); err != nil {
		b.Fatal(err)
	}
	if err := <-sent; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric((tunneltest.CPU()-cpu).Seconds()/(float64(b.N*len(piece))/1e9), "cpu-s/GB")
}

// echoes is a connection over loopback to a target that echoes.
func echoes(b *testing.B) net.Conn {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		_, _ = io.Copy(far, far)
		_ = far.Close()
	}()
	return c
}
