// Packets: the codec for gRPC. The bytes of DATA packets are not copied.

package konnectivity

import (
	"bytes"
	"fmt"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/hawser-project/hawser/tunnel"
)

// Numbers of fields in konnectivity's client.proto.
const (
	fieldType      protowire.Number = 1 // of Packet
	fieldData      protowire.Number = 4 // of Packet
	fieldConnectID protowire.Number = 1 // of Data
	fieldBytes     protowire.Number = 3 // of Data
)

const (
	// frameSize is the maximum size of an HTTP/2 frame of gRPC.
	frameSize = 16 << 10
	// worthy is the least number of bytes that keep a frame's buffer. Fewer are copied, so
	// that queued data uses at most twice its size.
	worthy = frameSize / 2
)

// A received packet.
type received struct {
	packet *client.Packet // nil if it is DATA in the usual form
	data   data
}

// Data are the bytes of a packet for a connection.
type data struct {
	id    int64
	bytes mem.BufferSlice // the owner frees them, or leaves them to the garbage collector
}

// A codec unmarshals to received, and marshals data and client.Packets.
type codec struct{}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2. It takes the bytes of data over.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *data:
		return append(mem.BufferSlice{mem.SliceBuffer(v.head())}, v.bytes...), nil
	case *client.Packet:
		b, err := proto.Marshal(v)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	return nil, fmt.Errorf("konnectivity: %T is not sent", v)
}

// head is the encoding of a DATA packet before its bytes.
func (d *data) head() []byte {
	n := d.bytes.Len()
	inner := protowire.SizeTag(fieldConnectID) + protowire.SizeVarint(uint64(d.id)) + protowire.SizeTag(fieldBytes) + protowire.SizeBytes(n)
	b := make([]byte, 0, 40)
	b = protowire.AppendTag(b, fieldType, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(client.PacketType_DATA))
	b = protowire.AppendTag(b, fieldData, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(inner))
	b = protowire.AppendTag(b, fieldConnectID, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(d.id))
	b = protowire.AppendTag(b, fieldBytes, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

// Unmarshal implements encoding.CodecV2. It decodes the usual DATA packets itself, in one
// buffer or several, and all others by proto.Unmarshal.
func (codec) Unmarshal(from mem.BufferSlice, v any) error {
	r, ok := v.(*received)
	if !ok {
		return fmt.Errorf("konnectivity: %T is not received", v)
	}
	*r = received{}
	if len(from) > 0 {
		if id, head, ok := dataHead(from[0].ReadOnlyData(), from.Len()); ok {
			r.data = data{id, tail(from, head)}
			return nil
		}
	}
	whole := from.MaterializeToBuffer(buffers)
	defer whole.Free()
	p := new(client.Packet)
	if err := proto.Unmarshal(whole.ReadOnlyData(), p); err != nil {
		return err
	}
	if d := p.GetData(); p.GetType() == client.PacketType_DATA && d != nil {
		r.data = data{d.ConnectID, mem.BufferSlice{mem.SliceBuffer(d.Data)}}
		return nil
	}
	r.packet = p
	return nil
}

// dataHead returns the connectID of a packet of that size that begins with b, and the
// length of its encoding before its bytes. ok is false unless it is DATA and has exactly
// its type, its connectID and its bytes, in this order.
func dataHead(b []byte, size int) (id int64, head int, ok bool) {
	c := cutter{b: b, size: size}
	if c.tag(fieldType, protowire.VarintType) && c.varint() == uint64(client.PacketType_DATA) &&
		c.tag(fieldData, protowire.BytesType) && c.last() && c.tag(fieldConnectID, protowire.VarintType) {
		id = int64(c.varint())
		ok = c.tag(fieldBytes, protowire.BytesType) && c.last()
	}
	return id, c.at, ok && !c.bad
}

// A cutter decodes the head of a packet.
type cutter struct {
	b    []byte
	at   int
	size int  // of the packet, of which b is the beginning
	bad  bool // it has another form, or is longer than b
}

func (c *cutter) varint() uint64 {
	v, n := protowire.ConsumeVarint(c.b[c.at:])
	if n < 0 {
		c.bad = true
		return 0
	}
	c.at += n
	return v
}

// tag reports whether the next field is that one.
func (c *cutter) tag(number protowire.Number, t protowire.Type) bool {
	return c.varint() == protowire.EncodeTag(number, t) && !c.bad
}

// last reports whether the next field ends with the packet, and steps into it.
func (c *cutter) last() bool {
	n := c.varint()
	return !c.bad && n == uint64(c.size-c.at)
}

// tail is from without its first n bytes, which are in its first buffer.
func tail(from mem.BufferSlice, n int) mem.BufferSlice {
	to := make(mem.BufferSlice, 0, len(from))
	for _, b := range from {
		switch size := b.Len() - n; {
		case size >= worthy:
			to = append(to, b.Slice(n, b.Len()))
		case size > 0:
			to = append(to, mem.SliceBuffer(bytes.Clone(b.ReadOnlyData()[n:])))
		}
		n = 0
	}
	return to
}

// given returns the n bytes of b. The caller owns them and frees b by them.
func given(b *tunnel.Buffer, n int) mem.Buffer {
	p := b.Take(n)[:n]
	return mem.NewBuffer(&p, giver(b.Give()))
}

// A giver is a pool of one buffer.
type giver func()

// Get implements mem.BufferPool.
func (giver) Get(n int) *[]byte { return mem.NopBufferPool{}.Get(n) }

// Put implements mem.BufferPool.
func (g giver) Put(*[]byte) { g() }

// buffers are those into which gRPC reads frames. gRPC overwrites each completely, so
// that they need not be cleared.
var buffers = new(frames)

type frames struct{ pool sync.Pool }

// Get implements mem.BufferPool.
func (f *frames) Get(n int) *[]byte {
	if n < worthy || n > frameSize {
		return mem.NopBufferPool{}.Get(n)
	}
	p, ok := f.pool.Get().(*[]byte)
	if !ok {
		b := make([]byte, n, frameSize)
		return &b
	}
	*p = (*p)[:n]
	return p
}

// Put implements mem.BufferPool.
func (f *frames) Put(p *[]byte) {
	if cap(*p) == frameSize {
		f.pool.Put(p)
	}
}
