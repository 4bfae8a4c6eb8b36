"""Files that are too large for a result, kept by name: what a step downloads, what a later step reads.

    chunks ──write_stream──▶ name                         in one attempt
    chunks ──draft.write──▶ draft ──draft.keep──▶ name    over several attempts

A file is there whole or not at all, and writing a name again replaces it, so a step may run twice. Names are
relative paths and cannot lead out of the storage. `Storage.open` chooses the storage by its address:

    interface   what every storage does
    names       which names files and drafts may have
    folder      a folder of the machine
    s3          a bucket of S3, or of a server that speaks like it; on `s3_faults`, what that refused
    drafts      files on their way, for whoever goes on with them; on `draft_file`, one of them on the disk
    disk        what both do with a disk: threads, folders that are synced, files that are put in place whole
    faults      what went wrong with a disk, in our words

The calls that block run in threads.
"""

from holdfast.storage.drafts import Draft
from holdfast.storage.folder import FolderStorage
from holdfast.storage.interface import Saved, Storage
from holdfast.storage.names import check_draft_key, check_file_name

__all__ = ["Draft", "FolderStorage", "Saved", "Storage", "check_draft_key", "check_file_name"]
