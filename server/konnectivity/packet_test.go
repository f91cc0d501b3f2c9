// Tests of the codec: it reads and writes the same bytes as protobuf.

package konnectivity

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/hawser-project/hawser/tunnel"
)

// asSent is the packet that a client decodes.
func asSent(t *testing.T, packet any) *client.Packet {
	t.Helper()
	b, err := codec{}.Marshal(packet)
	if err != nil {
		t.Error(err)
	}
	defer b.Free()
	p := new(client.Packet)
	if err := proto.Unmarshal(b.Materialize(), p); err != nil {
		t.Errorf("%v: %v", packet, err)
	}
	return p
}

// The encoding of DATA is byte for byte that of protobuf.
func TestDataIsSentAsProtobuf(t *testing.T) {
	for _, id := range []int64{1, 127, 128, 1 << 40, -1} {
		for _, size := range []int{1, 100, 127, 128, 16 << 10, 64 << 10, 3 << 20} {
			text := bytes.Repeat([]byte{'x'}, size)
			got, err := codec{}.Marshal(&data{id, mem.BufferSlice{mem.SliceBuffer(text)}})
			if err != nil {
				t.Fatal(err)
			}
			want, err := proto.Marshal(dataOf(id, string(text)))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Materialize(), want) {
				t.Errorf("%d bytes of %d: %.40x; want %.40x", size, id, got.Materialize(), want)
			}
		}
	}
}

// Memory that was handed over is recycled once its last reference is freed.
func TestMemoryIsGivenBack(t *testing.T) {
	before := tunnel.Buffered()
	var buf tunnel.Buffer
	copy(buf.Take(64<<10), "hello")
	b := given(&buf, len("hello"))
	if n := tunnel.Buffered() - before; n != 0 || string(b.ReadOnlyData()) != "hello" {
		t.Errorf("%q, and %d bytes are still held", b.ReadOnlyData(), n)
	}
	b.Ref()
	b.Free()
	if string(b.ReadOnlyData()) != "hello" {
		t.Error("it went before its last reference")
	}
	b.Free()
	buf.Free() // holds nothing
}

// Data in large frames stays in their buffers, and small frames are copied.
func TestLargeFramesAreNotCopied(t *testing.T) {
	whole, err := proto.Marshal(dataOf(1, string(make([]byte, 32<<10))))
	if err != nil {
		t.Fatal(err)
	}
	frames := inFrames(whole, frameSize)
	var r received
	if err := (codec{}).Unmarshal(frames, &r); err != nil {
		t.Fatal(err)
	}
	if len(frames) != 3 || len(r.data.bytes) != 3 {
		t.Fatalf("%d frames, %d parts", len(frames), len(r.data.bytes))
	}
	for i, part := range r.data.bytes {
		frame, p := frames[i].ReadOnlyData(), part.ReadOnlyData()
		if same := &frame[len(frame)-1] == &p[len(p)-1]; same != (i < 2) {
			t.Errorf("frame %d: kept %v", i, same)
		}
	}
}

// inFrames is b in buffers of that size.
func inFrames(b []byte, size int) mem.BufferSlice {
	var all mem.BufferSlice
	for len(b) > 0 {
		n := min(size, len(b))
		all = append(all, mem.Copy(b[:n], buffers))
		b = b[n:]
	}
	return all
}

// FuzzCodec compares decoded packets, in frames of any size, with those of protobuf.
func FuzzCodec(f *testing.F) {
	for _, p := range []*client.Packet{
		{},
		dialReq(1),
		dialCls(2),
		closeReq(3),
		dataOf(1, "hello"),
		dataOf(-1, ""),
		dataOf(300, string(make([]byte, 20<<10))),
		{Type: client.PacketType_DATA, Payload: &client.Packet_Data{Data: &client.Data{ConnectID: 1, Error: "e", Data: []byte("x")}}},
		{Type: client.PacketType_DRAIN, Payload: dataOf(1, "x").Payload},
	} {
		b, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint16(1))
		f.Add(b, uint16(frameSize))
		f.Add(append(b, b...), uint16(7))
		f.Add(protowire.AppendVarint(protowire.AppendTag(b, 99, protowire.VarintType), 1), uint16(50))
	}
	f.Fuzz(func(t *testing.T, b []byte, size uint16) {
		frames := inFrames(b, max(1, int(size)))
		var got received
		err := codec{}.Unmarshal(frames, &got)
		frames.Free()
		want := new(client.Packet)
		werr := proto.Unmarshal(b, want)
		if (err == nil) != (werr == nil) {
			t.Fatalf("%v; protobuf says %v", err, werr)
		}
		if err != nil {
			return
		}
		d := want.GetData()
		if want.GetType() != client.PacketType_DATA || d == nil {
			if !proto.Equal(got.packet, want) {
				t.Errorf("%v; protobuf says %v", got.packet, want)
			}
			return
		}
		if got.packet != nil || got.data.id != d.ConnectID || !bytes.Equal(got.data.bytes.Materialize(), d.Data) {
			t.Errorf("%v, connection %d, %.50q; protobuf says %v", got.packet, got.data.id, got.data.bytes.Materialize(), d)
		}
		got.data.bytes.Free()
	})
}
