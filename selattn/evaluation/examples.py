"""The paper's own example text.

From the appendix "Example Details" of "Selective Attention Improves Transformer" (Leviathan, Kalman and Matias, ICLR
2025), where it is taken from the validation part of C4; lower case and blanks as printed there.
"""

from __future__ import annotations

PAPER = (
    "the real problem with traditional dental veneers has little to do with how they function or their "
    "performance . who determines what a normal , aesthetically pleasing smile looks like is the real issue . "
    "america struggled for decades with defining `` image '' as a marketplace bent on exploiting peoples ' flaws "
    "for economic gain . the danger of this national obsession has become systemic since the days of twiggy . "
    "fashion magazines offer photoshopped perfection as the standard to which we should aspire . the effects of "
    "this insidious marketing made their way into breast implants and the definition of a hollywood smile . "
    "carving their bodies and their teeth , people use their resources to chase a false picture of their `` "
    "perfect '' self . people make investments in the tens of thousands of dollars at their dentist office to get "
    "the `` perfect '' smile . this message has become so endemic that people with nice smiles are convinced only "
    "a `` perfect '' hollywood smile is acceptable . one particularly relevant example of this is highlighted in "
    "a june 2015 article entitled `` saving jane ' s smile . '' gary nankin , dds discusses how he `` saved '' "
    "the smile of a patient who was not content with her first set of # porcelain veneers . 1 . endodontic "
    "referral for treatment of tooth number 15 , followed by a composite core build - up . 2 . periodontal "
    "therapy in both the anterior region and upper left to achieve optimal tissue health . 4 . preparation of "
    "maxillary teeth and placement of permanent restorations . 5 . placement of dental implant by the "
    "periodontist followed by preparation of mandibular teeth and placement of permanent restorations . 6 . "
    "restore the now fully - healed and osseointegrated implant in the position of tooth number 30 . regarding a "
    "person ' s smile , the strong link to self - esteem and self - worth make an imperfect set of teeth a "
    "concern . however , the picture in the article clearly illustrates what appears to be a well - constructed "
    "and healthy - looking smile . the entire premise is puzzling . how does a dentist promote `` saving '' a "
    "smile that 97 % of the people in america would love to show off ? ."
)

_LAST = "the definition of a hollywood smile"
PASSAGE = PAPER[: PAPER.index(_LAST) + len(_LAST)]  # its beginning, where a whole page of it is too much
