// This file makes HTTP and gRPC probes.

package probes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	userAgent    = "kube-probe/1.37"
	maxRedirects = 10
)

// client returns an HTTP client for one request through dial, which it gives the port. It
// follows redirects to the same host.
func client(dial func(ctx context.Context, port uint16) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				_, text, err := net.SplitHostPort(addr)
				if err != nil {
					return nil, err
				}
				port, err := strconv.ParseUint(text, 10, 16)
				if err != nil {
					return nil, fmt.Errorf("port: %w", err)
				}
				return dial(ctx, uint16(port))
			},
			// Probes ask whether a server answers, not who it is.
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			switch {
			case req.URL.Hostname() != via[0].URL.Hostname():
				return http.ErrUseLastResponse // somewhere else: the redirect itself is the answer
			case len(via) >= maxRedirects:
				return fmt.Errorf("stopped after %d redirects", maxRedirects)
			}
			return nil
		},
	}
}

// Get makes the request of an httpGet action and returns the answer's status and
// the beginning of its body. status is 0 if there was no answer; it is not if the body
// could not be read. Lifecycle hooks make their requests with it too.
func Get(ctx context.Context, a *corev1.HTTPGetAction, t Target) (status int, body string, err error) {
	port, err := t.port(a.Port)
	if err != nil {
		return 0, "", err
	}
	req, err := request(ctx, a, t, port)
	if err != nil {
		return 0, "", err
	}
	c := client(func(ctx context.Context, port uint16) (net.Conn, error) { return t.dial(ctx, a.Host, port) })
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return resp.StatusCode, "", fmt.Errorf("read body: %w", err)
	}
	return resp.StatusCode, string(b), nil
}

func request(ctx context.Context, a *corev1.HTTPGetAction, t Target, port uint16) (*http.Request, error) {
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path}
	}
	u.Scheme = strings.ToLower(string(a.Scheme))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	u.Host = net.JoinHostPort(cmp.Or(a.Host, t.Host, "localhost"), strconv.Itoa(int(port)))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for _, h := range a.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	req.Host = cmp.Or(req.Header.Get("Host"), req.Host)
	if req.Header.Values("User-Agent") == nil {
		req.Header.Set("User-Agent", userAgent)
	}
	if req.Header.Values("Accept") == nil {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	return req, nil
}

func (t Target) http(ctx context.Context, a *corev1.HTTPGetAction) (verdict, error) {
	if _, err := t.port(a.Port); err != nil {
		return verdict{}, err
	}
	status, body, err := Get(ctx, a, t)
	switch {
	case err != nil && status != 0:
		return verdict{}, err
	case err != nil:
		return verdict{output: err.Error()}, nil
	case status < 200 || status >= 400:
		return verdict{output: fmt.Sprintf("HTTP probe failed with statuscode: %d", status)}, nil
	case status >= 300:
		return verdict{ok: true, warned: true, output: "Probe terminated redirects, Response body: " + body}, nil
	}
	return verdict{ok: true, output: body}, nil
}

// grpc calls grpc.health.v1.Health/Check. The call is small enough to be made
// with net/http alone: one message each way, each after a prefix of five bytes.
func (t Target) grpc(ctx context.Context, a *corev1.GRPCAction) (bool, string, error) {
	if a.Port < 1 || a.Port > 65535 {
		return false, "", fmt.Errorf("port %d is no port", a.Port)
	}
	c := client(t.Dial)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	tr := c.Transport.(*http.Transport) //nolint:forcetypeassert // made by client
	tr.Protocols = &protocols
	defer tr.CloseIdleConnections()

	target := "http://" + net.JoinHostPort(cmp.Or(t.Host, "localhost"), strconv.Itoa(int(a.Port))) + "/grpc.health.v1.Health/Check"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(healthRequest(a.Service)))
	if err != nil {
		return false, "", fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.Do(req)
	if err != nil {
		return false, fmt.Sprintf("error: failed to connect service: %v", err), nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return false, fmt.Sprintf("error: health rpc failed: %v", err), nil
	}
	code, msg := resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")
	if code == "" { // an answer without a body has all of it in its header
		code, msg = resp.Header.Get("Grpc-Status"), resp.Header.Get("Grpc-Message")
	}
	if code != "0" {
		return false, fmt.Sprintf("error: health rpc failed: status %s %s", code, msg), nil
	}
	status, err := healthStatus(b)
	if err != nil {
		return false, fmt.Sprintf("error: health rpc failed: %v", err), nil
	}
	if status != serving {
		return false, fmt.Sprintf("service unhealthy (responded with status %d)", status), nil
	}
	return true, "", nil
}

// serving is HealthCheckResponse.SERVING.
const serving = 1

// healthRequest encodes a HealthCheckRequest: field 1, a string, is the service.
func healthRequest(service *string) []byte {
	var msg []byte
	if service != nil && *service != "" {
		msg = append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(*service))), *service...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...) //nolint:gosec // a name from an API object
}

// healthStatus decodes a HealthCheckResponse: field 1, a varint, is the status,
// absent when it is 0. Other fields are skipped.
func healthStatus(b []byte) (uint64, error) {
	if len(b) < 5 || b[0] != 0 || uint64(binary.BigEndian.Uint32(b[1:5])) != uint64(len(b)-5) {
		return 0, errors.New("malformed answer")
	}
	var status uint64
	for b = b[5:]; len(b) > 0; {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, errors.New("malformed answer")
		}
		b = b[n:]
		v, n := binary.Uvarint(b) // the value of a varint, the length of bytes
		if n <= 0 {
			return 0, errors.New("malformed answer")
		}
		b = b[n:]
		switch tag & 7 {
		case 0:
			if tag>>3 == 1 {
				status = v
			}
		case 2:
			if v > uint64(len(b)) {
				return 0, errors.New("malformed answer")
			}
			b = b[v:]
		default:
			return 0, errors.New("malformed answer")
		}
	}
	return status, nil
}
