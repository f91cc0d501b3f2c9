// What errors of etcd's client mean.

package etcd

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Unavailable tells whether err, of a request to the store, says that no member could
// answer it. Whether it was done is then not known.
func Unavailable(err error) bool { return err != nil && codeOf(err) == codes.Unavailable }

// codeOf is the code of an error of the client, which has two ways to say it.
func codeOf(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &e) {
		return e.Code()
	}
	return status.Code(err)
}

// Closed tells whether err, of a request to the store, says that the client was closed
// before there was an answer.
func Closed(err error) bool { return err != nil && codeOf(err) == codes.Canceled }
