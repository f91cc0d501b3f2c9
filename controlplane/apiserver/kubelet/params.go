package kubelet

// Query parameters of the subresources, read into the option types of the API.

import (
	"fmt"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme registers how query parameters become PodLogOptions,
// PodExecOptions and the other options. The API server's scheme needs it: the
// API types alone do not bring it along.
func AddToScheme(s *runtime.Scheme) error {
	for _, r := range []struct {
		into any
		read func(url.Values, any) error
	}{
		{(*corev1.PodLogOptions)(nil), func(q url.Values, o any) error { return readLog(q, o.(*corev1.PodLogOptions)) }},
		{(*corev1.PodExecOptions)(nil), func(q url.Values, o any) error { return readExec(q, o.(*corev1.PodExecOptions)) }},
		{(*corev1.PodAttachOptions)(nil), func(q url.Values, o any) error { return readAttach(q, o.(*corev1.PodAttachOptions)) }},
		{(*corev1.PodPortForwardOptions)(nil), func(q url.Values, o any) error { return readPorts(q, o.(*corev1.PodPortForwardOptions)) }},
		{(*corev1.PodProxyOptions)(nil), func(q url.Values, o any) error { return readString(q, "path", &o.(*corev1.PodProxyOptions).Path) }},
		{(*corev1.NodeProxyOptions)(nil), func(q url.Values, o any) error { return readString(q, "path", &o.(*corev1.NodeProxyOptions).Path) }},
		{(*corev1.ServiceProxyOptions)(nil), func(q url.Values, o any) error {
			return readString(q, "path", &o.(*corev1.ServiceProxyOptions).Path)
		}},
	} {
		err := s.AddConversionFunc((*url.Values)(nil), r.into, func(a, b any, _ conversion.Scope) error {
			return r.read(*a.(*url.Values), b)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func readLog(q url.Values, o *corev1.PodLogOptions) error {
	*o = corev1.PodLogOptions{}
	if vs, ok := q["sinceTime"]; ok {
		if err := metav1.Convert_Slice_string_To_Pointer_v1_Time(&vs, &o.SinceTime, nil); err != nil {
			return err
		}
	}
	if vs, ok := q["stream"]; ok && len(vs) > 0 {
		o.Stream = &vs[0]
	}
	return firstError(
		readString(q, "container", &o.Container),
		readBool(q, "follow", &o.Follow),
		readBool(q, "previous", &o.Previous),
		readBool(q, "timestamps", &o.Timestamps),
		readBool(q, "insecureSkipTLSVerifyBackend", &o.InsecureSkipTLSVerifyBackend),
		readInt(q, "sinceSeconds", &o.SinceSeconds),
		readInt(q, "tailLines", &o.TailLines),
		readInt(q, "limitBytes", &o.LimitBytes),
	)
}

func readExec(q url.Values, o *corev1.PodExecOptions) error {
	*o = corev1.PodExecOptions{Command: q["command"]}
	return readTerminal(q, &o.Container, &o.Stdin, &o.Stdout, &o.Stderr, &o.TTY)
}

func readAttach(q url.Values, o *corev1.PodAttachOptions) error {
	*o = corev1.PodAttachOptions{}
	return readTerminal(q, &o.Container, &o.Stdin, &o.Stdout, &o.Stderr, &o.TTY)
}

func readTerminal(q url.Values, container *string, stdin, stdout, stderr, tty *bool) error {
	return firstError(
		readString(q, "container", container),
		readBool(q, "stdin", stdin),
		readBool(q, "stdout", stdout),
		readBool(q, "stderr", stderr),
		readBool(q, "tty", tty),
	)
}

func readPorts(q url.Values, o *corev1.PodPortForwardOptions) error {
	*o = corev1.PodPortForwardOptions{}
	for _, v := range q["ports"] {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return fmt.Errorf("invalid port %q", v)
		}
		o.Ports = append(o.Ports, int32(n))
	}
	return nil
}

func readString(q url.Values, key string, into *string) error {
	*into = q.Get(key)
	return nil
}

func readBool(q url.Values, key string, into *bool) error {
	vs, ok := q[key]
	if !ok {
		return nil
	}
	return runtime.Convert_Slice_string_To_bool(&vs, into, nil)
}

func readInt(q url.Values, key string, into **int64) error {
	vs, ok := q[key]
	if !ok {
		return nil
	}
	return runtime.Convert_Slice_string_To_Pointer_int64(&vs, into, nil)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
